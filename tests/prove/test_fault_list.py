"""Every claim has a fault, every fault a test of its effect, and sound models are sound."""

from __future__ import annotations

import pytest
import test_data_faults_are_real
import test_model_faults_are_real
import torch
from fault_effects import (
    ROUNDING,
    far,
    moved_by_neighbours,
    moved_by_packing,
    moved_by_padding,
    moved_by_steps,
    moved_by_the_future,
    reloaded,
    tokens,
)
from faults import FAULTS, FAULTS_BY_NAME
from faulty_torch import LENGTH, VOCABULARY
from healthy_models import HEALTHY

from regard.prove import all_claims


def test_every_claim_has_a_fault_and_every_fault_a_test():
    assert len(FAULTS) == len(FAULTS_BY_NAME) == 30
    assert sum(fault.listed for fault in FAULTS) == 20
    assert {fault.claim for fault in FAULTS if fault.listed} == {*all_claims()}
    tests = vars(test_model_faults_are_real) | vars(test_data_faults_are_real)
    checks = {name.removeprefix("test_") for name in tests if name.startswith("test_")}
    assert all(name.lower().replace(",", "").replace("-", "_").replace(" ", "_") in checks for name in FAULTS_BY_NAME)


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_sound_models_run_and_keep_the_future_hidden(healthy):
    subject, again = healthy.make(), healthy.make()
    forward, twin = subject.module.eval(), again.module.eval()
    assert forward(tokens()).shape == (4, LENGTH, VOCABULARY)
    assert torch.equal(forward(tokens()), twin(tokens()))
    assert (moved_by_the_future(forward) < ROUNDING) == subject.causal
    if subject.model is not None:
        assert moved_by_steps(forward, [6, 5, *[1] * 13]) < ROUNDING
        assert moved_by_packing(forward) < ROUNDING
        assert far(forward(tokens()), reloaded(forward)(tokens())) < ROUNDING
    if subject.padded is not None:
        assert moved_by_padding(subject.padded, forward) < ROUNDING
    assert moved_by_neighbours(forward) < ROUNDING
