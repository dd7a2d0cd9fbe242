"""The study of in-context learning: its texts, its measures of known attention, and words that follow from them."""

import pytest
import torch

from regard.studies import icl
from regard.studies.icl import CONTEXT, EARLY, EVERY, LATE, PERIODS, Moment, RepeatedTexts


def test_texts_repeat_random_tokens_after_different_distances():
    data = RepeatedTexts()
    batch = data.batch(3, seed=1, size=200)
    rows = torch.cat((batch.inputs, batch.targets[:, -1:]), 1)
    assert rows.shape == (200, CONTEXT + 1)
    periods = [next(p for p in range(1, CONTEXT) if torch.equal(row[p:], row[:-p])) for row in rows]
    assert min(periods) >= PERIODS[0]
    assert max(periods) <= PERIODS[1]
    assert len(set(periods)) > 15  # a fixed distance does not help
    for row, period in zip(rows, periods, strict=True):
        assert len(set(row[:period].tolist())) == period  # nothing repeats before
    assert EARLY.stop < PERIODS[0]
    assert LATE.start > PERIODS[1]
    assert torch.equal(data.batch(3, seed=1, size=200).inputs, batch.inputs)
    assert not torch.equal(data.batch(4, seed=1, size=200).inputs, batch.inputs)
    halves = [data.batch(3, seed=1, rank=rank, world=2, size=100).inputs for rank in range(2)]
    assert torch.equal(torch.stack(halves, 1).flatten(0, 1), batch.inputs)


def test_held_out_texts_are_not_trained_on():
    (held_out,) = RepeatedTexts().validation_batches(16)
    seen = {
        tuple(row[:8].tolist()) for step in range(50) for row in RepeatedTexts().batch(step, seed=1, size=32).inputs
    }
    assert not seen & {tuple(row[:8].tolist()) for row in held_out.inputs}


def run(at: int, also_at: int, induction: float = 0.9, score: float = -4.0, length: int = 20) -> list[Moment]:
    """A run whose induction score jumps at one measurement, and its in-context score at another."""
    return [
        Moment(n * EVERY, 4.0, 4.0 + score * (n >= also_at), induction if n >= at else 0.02, 0.5) for n in range(length)
    ]


def test_jumps_are_where_the_measures_change():
    assert icl.jumps(run(5, 6)) == (5 * EVERY, 6 * EVERY)
    assert icl.half([0, 0, 4, 10, 10], [0, 1, 2, 3, 4]) == 3
    assert icl.half([0, -6, -10], [0, 1, 2]) == 1


def test_words_follow_from_the_runs():
    none = [run(0, 9, 0.03, -1.2)] * 2
    said = " ".join(icl.words({1: none, 2: [run(5, 6), run(8, 8)]}))
    assert "largest previous-token score in the end, by seed: -1.20, 0.03 and 0.50" in said
    assert f"at steps {5 * EVERY} and {6 * EVERY}, {8 * EVERY} and {8 * EVERY}: they change together" in said
    assert "One layer never has an induction head" in said
    assert "two layers learn more from the context with every seed" in said
    said = " ".join(icl.words({1: [run(3, 3)] * 2, 2: [run(2, 12), none[0]]}))
    assert "1 of 2 models of two layers have a head" in said
    assert "they do not change together" in said
    assert "One layer also has an induction head, and two layers do not learn more" in said
    assert "half-way" not in " ".join(icl.words({1: none, 2: none}))


def test_a_model_without_training_has_no_score():
    found = icl.observed(2, 1, 1)
    assert len(found) == 1
    assert abs(found[0].in_context) < 0.2
    assert found[0].induction < 0.1


@pytest.mark.slow
def test_two_layers_learn_from_the_context_and_one_does_not():
    one, two = (icl.observed(layers, 1, 500)[-1] for layers in (1, 2))
    assert two.in_context < one.in_context - 1
    assert two.induction > 0.4 > 0.1 > one.induction
