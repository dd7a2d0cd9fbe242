"""The study of warm-up: what trains, the rate that is shown, and gradients and changes of a small model."""

import math
from dataclasses import replace

import pytest
import torch

from regard.data import TextBatch
from regard.studies import warmup
from regard.studies.warmup import BLOCKS, RATES, RUNS

INF = math.inf
LOSSES = {
    "post-norm, no warm-up": [[2.5, 2.6], [2.2, 3.4], [3.4, 3.4], [INF, 3.4], [3.4, 3.4]],
    "post-norm, warm-up": [[2.5, 2.6], [2.3, 2.4], [2.5, 2.6], [3.4, 3.4], [3.4, 3.4]],
    "pre-norm, no warm-up": [[2.5, 2.6]] * 5,
    "pre-norm, warm-up": [[2.6, 2.5]] * 5,
}


def test_a_rate_trains_if_it_does_with_every_seed():
    assert [warmup.largest(found, 3.34) for found in LOSSES.values()] == [RATES[0], RATES[2], RATES[-1], RATES[-1]]
    assert warmup.largest([[3.3, 2.0]] * 5, 3.34) is None


def test_words_follow_from_losses():
    measured = ({block: [1.0, 4.0] for block in BLOCKS}, {"post-norm, warm-up": [0.5]})
    said = " ".join(warmup.words(LOSSES, 3.34, *measured))
    assert "Post-norm: the lowest loss is 2.350 ± 0.635 with warm-up (at 0.001), 0.200 ± 0.000 lower than" in said
    assert "larger with warm-up: 0.003, without 0.0003." in said
    assert "no different than without (+0.000 ± 1.271) (at 0.0003)" in said
    assert "the same with warm-up: 0.03, without 0.03." in said
    assert "last layer over that of the first: post-norm 4, pre-norm 4" in said
    untrained = {name: [[3.4, 3.4]] * 5 for name in RUNS}
    assert "the same with warm-up: none of them, without none of them." in " ".join(
        warmup.words(untrained, 3.34, *measured)
    )


def test_the_rate_that_is_shown_is_where_warm_up_matters_most():
    assert warmup.widest(LOSSES) == RATES[3]  # 10, for a loss that is not finite, against 3.4


def test_runs_are_the_blocks_with_and_without():
    assert [share for _, share in RUNS.values()] == [0, warmup.WARMUP] * 2
    config = warmup.model_config("post-norm", 11)
    assert config.block.kind == "post-norm"
    assert warmup.experiment(config, 1e-3, 0, 5, 1).train.clip is None


def test_gradients_are_those_of_each_layer():
    config = replace(warmup.model_config("pre-norm", 11), layers=3, context=8)
    start = warmup.xavier_weights(config, 1)
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    batch = TextBatch(tokens[:, :-1], tokens[:, 1:])
    before = warmup.gradients_by_layer(config, start, batch)
    assert len(before) == 3
    assert min(before) > 0
    name = next(name for name in start if name.endswith("1.feedforward.up.weight"))
    after = warmup.gradients_by_layer(config, {**start, name: torch.zeros_like(start[name])}, batch)
    assert after[1] == 0  # no hidden unit of the second layer is active
    assert after[2] > 0


@pytest.mark.slow
def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(warmup, "RATES", (1e-3,))
    found = warmup.study(0.02, 1, lambda line: None)
    assert set(found.numbers["losses"]) == set(RUNS)
    assert all(len(changes) == 6 and min(changes) > 0 for changes in found.numbers["changes"].values())
