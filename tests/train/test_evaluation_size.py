"""How much of the validation part is evaluated: a share of the work of training, the same everywhere; its interval."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_kit import experiment, run_whole, start

from regard.commands.train import validation_in_words
from regard.parallel.world import World
from regard.train import Experiment, train
from regard.train.engine import Engine
from regard.train.evaluate import evaluate
from regard.train.evaluation_size import FEWEST, evaluated_batches, stride_within


@given(st.floats(0, 10**8), st.integers(1, 10**5), st.integers(1, 10**7))
def test_a_sample_has_no_more_tokens_than_it_may_and_no_less_than_half_of_them(tokens, batches, targets):
    stride = stride_within(tokens, targets, batches)
    assert math.log2(stride).is_integer()
    if stride > 1:
        assert batches / stride >= FEWEST
        assert 2 * targets / stride > tokens
    least = max(FEWEST, 1024 * batches / targets)
    assert targets / stride <= tokens or batches / (2 * stride) < least


def test_the_size_is_that_of_the_config_if_it_says_one(text):
    wanted = experiment(text)
    assert evaluated_batches(wanted, 100, 10**6, trained=10**6) == 25  # 0.3 of the tokens, by powers of two
    assert evaluated_batches(wanted, 100, None, trained=10**6) == 100
    given = replace(wanted, train=replace(wanted.train, evaluate_tokens=250_000))
    assert evaluated_batches(given, 100, 10**6, trained=10.0) == 25
    whole = replace(wanted, train=replace(wanted.train, evaluate_share=None))
    assert evaluated_batches(whole, 100, 10**6, trained=10.0) == 100


@pytest.fixture
def long_text(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "long.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 2000)
    return path


def test_the_first_evaluation_decides_and_the_config_keeps_it(long_text, tmp_path):
    wanted = experiment(long_text, steps=4, evaluate_every=2)
    run = start(tmp_path, wanted)
    result = train(wanted, run)
    decided = run.load(Experiment).train.evaluate_tokens
    assert decided is not None
    evaluated = [record for record in run.metrics() if "validation_loss" in record]
    assert len(evaluated) == 2
    assert {record["validation_share"] for record in evaluated} == {1 / round(9200 / decided)}
    assert all(record["validation_error"] > 0 for record in evaluated)
    assert "± " in validation_in_words(run, result, wanted)
    assert "of the validation set; regard evaluate" in validation_in_words(run, result, wanted)
    again = run_whole(tmp_path, run.load(Experiment), "again")
    for one, two in zip(run.metrics(), again.metrics(), strict=True):
        assert one.get("validation_loss") == two.get("validation_loss")
        assert one.get("validation_error") == two.get("validation_error")


def test_a_small_validation_part_is_read_whole(text, tmp_path):
    run = run_whole(tmp_path, experiment(text, steps=2))
    assert not any("validation_share" in record for record in run.metrics())
    assert run.load(Experiment).train.evaluate_tokens == 55


def test_without_a_share_all_is_read(long_text, tmp_path):
    run = run_whole(tmp_path, experiment(long_text, steps=2, evaluate_share=None))
    assert not any("validation_share" in record for record in run.metrics())
    assert run.load(Experiment).train.evaluate_tokens is None


def test_the_interval_holds_the_loss_of_the_whole_part(long_text):
    """Over samples that begin at each batch, the estimated error is about as large as the errors are."""
    wanted = experiment(long_text)
    data = wanted.data.build(wanted.model.context)
    engine = Engine(replace(wanted, model=wanted.model_for(data)), data, World())
    batches = list(engine.validation_batches())
    whole = evaluate(engine, batches)
    assert whole is not None
    off, errors = [], []
    for first in range(16):
        part = evaluate(engine, batches[first::16], share=1 / 16)
        assert part is not None
        off.append(part["validation_loss"] - whole["validation_loss"])
        errors.append(part["validation_error"])
    true = math.sqrt(statistics.fmean(one * one for one in off))
    assert 0.3 * true < statistics.fmean(errors) < 3 * true
