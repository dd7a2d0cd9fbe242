"""The study of data hunger: models of equal size, parts of the text, and words that follow from losses."""

import random

import pytest

from regard.models.size import describe
from regard.studies import data
from regard.studies.data import MODELS, SIZES, TRANSFORMER
from regard.studies.short_training import BestRun

TEXT = "".join(random.Random(1).choices("abcdefgh \n", k=500_000))


def runs(transformer: dict[int, list[float]], improving: bool = False) -> data.Runs:
    others = {name: {size: [2.0, 2.1, 2.2] for size in SIZES} for name in MODELS if name != TRANSFORMER}
    return {
        name: {n: [BestRun(x, 50, [(50, x)], improving) for x in found] for n, found in by_size.items()}
        for name, by_size in {**others, TRANSFORMER: transformer}.items()
    }


def test_the_models_have_as_many_parameters():
    sizes = [describe(data.sized(config, 83))["parameters"] for config in MODELS.values()]
    assert max(sizes) / min(sizes) < 1.02


def test_the_convolutions_see_the_context():
    cnn = MODELS["CNN"]
    assert isinstance(cnn, data.ConvolutionConfig)
    assert cnn.receptive_field == data.CONTEXT


def test_parts_are_of_their_size_and_share_what_is_held_out(tmp_path):
    texts = data.SizedTexts(TEXT, tmp_path)
    small, other, large = texts.part(SIZES[0], 1), texts.part(SIZES[0], 2), texts.part(SIZES[1], 1)
    assert [part.train_count for part in (small, other, large)] == [SIZES[0], SIZES[0], SIZES[1]]
    assert all(part.validation_count == data.HELD_OUT for part in (small, other, large))
    first = [next(iter(part.validation_batches(4))).inputs for part in (small, other, large)]
    assert first[0].equal(first[1])
    assert first[0].equal(first[2])
    assert not small.batch(0, seed=1, size=4).inputs.equal(other.batch(0, seed=1, size=4).inputs)


def test_the_rate_is_that_of_the_lowest_loss(monkeypatch, tmp_path):
    found = dict(zip(data.RATES, (2.5, 2.4), strict=True))
    monkeypatch.setattr(data, "trained", lambda config, rate, *rest: BestRun(found[rate], 50, [], False))
    assert data.best_rate(MODELS["LSTM"], data.SizedTexts(TEXT, tmp_path), 50, 1) == data.RATES[1]


def test_the_claim_holds_if_the_disadvantage_shrinks():
    hungry = runs({SIZES[0]: [2.5, 2.6, 2.7], SIZES[1]: [2.2, 2.3, 2.4], SIZES[2]: [1.9, 2.0, 2.1]})
    said = " ".join(data.words(hungry))
    assert "less that of the LSTM is +0.500 ± 0.000 with 2,048 characters and -0.100 ± 0.000 with 131,072" in said
    assert "it changes by -0.600 ± 0.000. The claim that a Transformer needs more text than the LSTM holds here" in said
    assert "before the loss stopped falling: none." in said


def test_the_claim_does_not_hold_if_it_does_not_shrink_or_not_measurably():
    for last in ([2.5, 2.6, 2.7], [1.5, 2.6, 3.1]):
        found = runs({SIZES[0]: [2.5, 2.6, 2.7], SIZES[1]: [2.2, 2.3, 2.4], SIZES[2]: last}, improving=True)
        said = " ".join(data.words(found))
        assert "needs more text than the CNN does not hold here" in said
        assert "falling: 9 of 9 with 2,048, 9 of 9 with 16,384, 9 of 9 with 131,072." in said


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(data, "SIZES", SIZES[:1])
    monkeypatch.setattr(data, "SEEDS", 1)
    monkeypatch.setattr(data, "RATES", data.RATES[:1])
    found = data.study(0.01, 1, lambda line: None)
    assert all(len(by_size[SIZES[0]]) == 1 for by_size in found.numbers["runs"].values())
