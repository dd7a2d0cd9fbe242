"""The study of scaled dot products: statistics that are those of the softmax, and words that follow from losses."""

import math

import pytest
import torch

from regard.studies import scaling
from regard.studies.scaling import KEYS, KINDS, NORMALIZED, SCALED, TRAINED, UNSCALED, entropy, jacobian_norm


@pytest.mark.parametrize("width", [16, 256])
def test_only_unscaled_scores_grow_with_the_width(width):
    generator = torch.Generator().manual_seed(1)
    found = {kind: scaling.random_scores(kind, width, 1.0, generator) for kind in KINDS}
    assert found[UNSCALED].variance == pytest.approx(width, rel=0.2)
    assert found[SCALED].variance == pytest.approx(1, rel=0.2)
    assert 0 < found[UNSCALED].entropy < found[SCALED].entropy < math.log(KEYS)


def test_normalized_vectors_have_no_size():
    sizes = [scaling.random_scores(NORMALIZED, 16, x, torch.Generator().manual_seed(1)) for x in (1.0, 8.0)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3)


def test_entropy_and_jacobian_are_those_of_the_softmax():
    scores = torch.randn(5, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    weights = scores.softmax(-1)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert jacobian_norm(weights[None]) == pytest.approx(jacobian.norm().item())
    assert entropy(torch.full((1, 8), 1 / 8)) == pytest.approx(math.log(8))
    assert entropy(torch.eye(3)) == 0


def test_the_words_say_what_not_dividing_costs():
    one = scaling.ScoreStatistics(1.0, 2.0, 0.1)
    at_start = {kind: dict.fromkeys(scaling.WIDTHS, one) for kind in KINDS}
    losses = {kind: {d: [x, x + 0.2, x + 0.1] for d in TRAINED} for kind, x in zip(KINDS, (2.5, 2.0, 2.1), strict=True)}
    said = " ".join(scaling.words(at_start, losses))
    assert "heads of width 64: q·k 2.600 ± 0.248, q·k / √d 2.100 ± 0.248" in said
    assert "Without the division it is 0.500 ± 0.000 higher than with it" in said
    losses[UNSCALED] = {width: [2.0, 2.1, 2.2] for width in TRAINED}  # within the interval of the pairs
    assert "Without the division it is no different than with it (+0.000 ± " in " ".join(
        scaling.words(at_start, losses)
    )


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(scaling, "TRAINED", (16,))
    found = scaling.study(0.005, 1, lambda line: None)
    assert all(
        0 < x < math.log(64) for by_width in found.numbers["trained_entropy"].values() for x in by_width.values()
    )
