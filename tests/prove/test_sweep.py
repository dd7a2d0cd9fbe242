"""Faults that show in some cases only are named, and the case is shrunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fault_kit import bare
from faulty_cases import CASE_FAULTS, Free
from faulty_torch import LENGTH
from unusual_models import UNUSUAL, FFTConvolution

from regard.prove import all_claims, certify
from regard.prove.sweep import cases

BY_NAME = {fault.name: fault for fault in CASE_FAULTS}


@pytest.mark.parametrize("fault", CASE_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_some_cases_is_named(fault):
    found = certify(fault.make(), claims=[fault.claim])
    assert found.failed == [fault.claim], str(found)


def test_the_sound_twin_passes():
    found = certify(bare(Free()), claims=["future", "finite", "batching", "padding"])
    assert found.failed == [], str(found)
    assert "number formats, up to 33 rows and 129 tokens" in found.of("future").evidence


@pytest.mark.parametrize("healthy", UNUSUAL, ids=lambda healthy: healthy.name)
def test_an_unusual_sound_model_passes(healthy):
    found = certify(healthy.make(), claims=["future", "padding", "batching", "step", "finite", "order"])
    assert found.failed == [], str(found)
    assert found.of("future").verdict == "holds"


def test_a_tiny_leak_is_no_rounding():
    """A mask that is a large number instead of -inf: 1e-6 of a later token, in an FFT that rounds as much."""

    class Leaky(FFTConvolution):
        def forward(self, tokens):
            x = super().forward(tokens)
            return x + 3e-6 * self.embed(tokens).sum((1, 2))[:, None, None]

    found = certify(bare(Leaky()), claims=["future"])
    assert found.failed == ["future"]


class Overflows(Free):
    """Values that are not finite in one number format, as -inf in a softmax that is computed in another format."""

    wrong = torch.float64

    def forward(self, tokens):
        logits = super().forward(tokens)
        return logits * torch.nan if logits.dtype == self.wrong else logits


def test_a_value_that_is_not_finite_in_the_reference_format_alone_is_no_fault():
    found = certify(bare(Overflows()), claims=["future", "padding", "batching", "finite"])
    assert found.failed == [], str(found)
    assert "float64 refused: values are not finite; float32 was tested instead" in found.of("padding").evidence


def test_a_value_that_is_not_finite_in_bfloat16_is_a_fault():
    model = Overflows()
    model.wrong = torch.bfloat16
    assert certify(bare(model), claims=["finite"]).failed == ["finite"]


def test_a_model_whose_weights_are_float64_is_tested_in_float64():
    subject = bare(model := Overflows())
    model.double()
    assert certify(subject, claims=["finite"]).failed == ["finite"]


def test_the_smallest_case_is_reported():
    found = certify(BY_NAME["a leak beyond twice the context"].make(), claims=["future"]).of("future")
    assert found.case is not None
    assert (found.case.format, found.case.rows, found.case.length) == ("float32", 1, 2 * LENGTH + 1)
    assert str(found.case) in found.evidence


def test_the_same_seed_draws_the_same_cases():
    subject, sweep = bare(Free()), all_claims()["step"].sweep
    assert sweep is not None
    drawn = [cases(replace(subject, seed=seed), sweep) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(cases(replace(subject, effort="full"), sweep)) > 2 * len(drawn[0])


def test_a_log_that_is_minus_infinity_forbids_nothing():
    class Logarithm(Free):
        """The probability of unlikely tokens is zero in float32."""

        def forward(self, tokens):
            return (300 * super().forward(tokens)).softmax(-1).log()

    assert certify(bare(Logarithm()), claims=["finite"]).failed == ["finite"]
