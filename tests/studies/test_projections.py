"""The study of shared projections: ties are what they say, equal parameters are equal, and the words follow."""

from dataclasses import replace

import pytest
import torch

from regard.look.capture.observe import attentions
from regard.measure.interval import Mean
from regard.studies import projections
from regard.studies.projections import PARAMETERS, SEPARATE, TIES, WIDTHS, TiedModel


def observed(tie: str, **changes: object):
    torch.manual_seed(1)
    config = replace(projections.model_config(tie, WIDTHS, 11), context=12, **changes)
    model = config.build()
    return attentions(model, lambda: model.features(torch.randint(11, (2, 12))))


@pytest.mark.parametrize("tie", TIES)
def test_scores_are_symmetric_where_queries_are_keys(tie):
    found = [projections.asymmetry(one) for one in observed(tie)]
    same = TIES[tie][0] == TIES[tie][1]
    assert all(x < 1e-6 if same else 0.5 < x < 2 for x in found)


def test_values_are_the_keys_before_they_are_rotated():
    torch.manual_seed(1)
    model = projections.model_config("K = V", WIDTHS, 11).build()
    (_, mechanism), *_ = model.mechanisms()
    seen = {}
    mechanism.register_forward_pre_hook(lambda _, inputs: seen.update(zip("qkv", inputs, strict=False)))
    model.features(torch.randint(11, (2, 12)))
    q, k, v = (seen[name] for name in "qkv")
    assert torch.allclose(k[:, :, 0], v[:, :, 0])  # position 0 is not rotated
    assert not torch.allclose(k[:, :, 1], v[:, :, 1])
    assert torch.allclose(k.norm(dim=-1), v.norm(dim=-1), atol=1e-5)  # a rotation keeps lengths
    assert not torch.allclose(q, k)


def test_separate_matrices_are_those_of_the_layer():
    """The same weights as in the attention of the package give the same result."""
    torch.manual_seed(1)
    config = projections.model_config(SEPARATE, WIDTHS, 11)
    tied, plain = config.build(), replace(config, projection=type(config)().projection).build()
    plain.load_state_dict(tied.state_dict())
    tokens = torch.randint(11, (2, 12))
    assert torch.allclose(tied.features(tokens), plain.features(tokens), atol=1e-6)


def test_equal_parameters_are_equal():
    def count(tie: str, equal: str) -> int:
        return sum(one.numel() for one in projections.model_config(tie, equal, 11).build().parameters())

    whole = count(SEPARATE, WIDTHS)
    assert {count(tie, PARAMETERS) for tie in TIES} == {whole}
    matrix = projections.LAYERS * projections.WIDTH**2
    assert [whole - count(tie, WIDTHS) for tie in TIES] == [0, matrix, matrix, 2 * matrix]


def test_verdicts_need_an_interval_without_zero():
    assert [projections.verdict(Mean(x, 0.1)) for x in (0.2, -0.2, 0.05, -0.05)] == [
        "worse",
        "better",
        *["no difference found"] * 2,
    ]


def test_the_words_say_what_a_tie_costs():
    base = [2.0, 2.1, 2.2, 2.3]
    by_tie = {
        tie: TiedModel(1000, [x + more for x in base], 0.5, 0.25)
        for tie, more in zip(TIES, (0, 0.1, -0.1, 0.2), strict=True)
    }
    said = " ".join(projections.words({WIDTHS: by_tie, PARAMETERS: {**by_tie, "Q = K": by_tie[SEPARATE]}}))
    assert "Q = K (1,000 parameters at equal width): +0.100 ± 0.000 at equal width, worse; +0.000 ± 0.000" in said
    assert "at equal parameters, no difference found." in said
    assert "K = V (1,000 parameters at equal width): -0.100 ± 0.000 at equal width, better" in said


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(projections, "SEEDS", 2)
    found = projections.study(0.01, 1, lambda line: None).numbers
    assert found[PARAMETERS][SEPARATE] == found[WIDTHS][SEPARATE]
    assert all(len(one["losses"]) == 2 for by_tie in found.values() for one in by_tie.values())
