"""Contenders: read from texts, made alike, equal in parameters and FLOPs, and refused where they cannot be compared."""

from pathlib import Path

import pytest
from compare_kit import CONTENDERS, keys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.commands.compare import read_contenders
from regard.compare.budget import LEAST, Length, steps_of
from regard.compare.contender import Contender, ContenderText, made_alike, sized
from regard.compare.costs import counted
from regard.compare.schedule import with_rate
from regard.compare.sets import SETS, ComparisonSet
from regard.config import dump, load
from regard.errors import UserError
from regard.models import describe
from regard.recipes import get
from regard.train import Experiment, MuonConfig

PROBLEM = ("toy-copy --model.context 64 --model.layers 1", "toy-copy --model.layers 2 --model.context 64")


def alike(folder: Path, *texts: str) -> list[Contender]:
    return made_alike(*read_contenders(ComparisonSet("", texts, ()), keys(folder)))


@pytest.fixture(scope="module")
def all_contenders(tmp_path_factory) -> list[Contender]:
    return alike(tmp_path_factory.mktemp("text"), *(f"{name}: {text}" for name, text in CONTENDERS.items()))


def test_contenders_differ_in_their_models_alone(all_contenders: list[Contender]) -> None:
    first = all_contenders[0].experiment
    for one in all_contenders:
        assert (one.experiment.data, one.experiment.train, one.experiment.task) == (first.data, first.train, first.task)
        assert one.experiment.model.context == 16
    assert len({one.experiment.model for one in all_contenders}) == len(CONTENDERS)


@given(parameters=st.floats(1e5, 1e6))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parameters_differ_by_under_two_percent(all_contenders: list[Contender], parameters: float) -> None:
    data = all_contenders[0].experiment.data.build(16)
    for one in all_contenders:
        found = describe(sized(one, data, parameters).experiment.model)["parameters"]
        assert abs(found / parameters - 1) <= 0.02, one.name


def test_flops_differ_by_under_two_percent(all_contenders: list[Contender]) -> None:
    data = all_contenders[0].experiment.data.build(16)
    costs = {one.name: counted(sized(one, data, 1e5).experiment, data) for one in all_contenders}
    length = Length("flops", LEAST * max(step.flops for step, *_ in costs.values()))
    for name, (step, parameters, memory) in costs.items():
        assert abs(steps_of(length, step, 1.0, name) * step.flops / length.amount - 1) <= 0.02, name
        assert step.tokens == 32
        assert step.flops > 4 * parameters * step.tokens * 0.5  # products with most weights, forward and backward
        assert memory > 4 * 4 * parameters * 0.9  # weights, gradients and two moments in float32


def test_options_of_one_contender_change_only_it(tmp_path: Path) -> None:
    one, two = alike(tmp_path, "a: shakespeare-small", "b: shakespeare-small --train.clip 0.5 --model.width 32")
    assert (one.experiment.train.clip, two.experiment.train.clip) == (1.0, 0.5)
    assert (one.experiment.model.width, two.experiment.model.width) == (64, 32)


def test_every_learning_rate_is_scaled() -> None:
    assert with_rate(MuonConfig(lr=0.02, rest_lr=0.004), 3.0) == MuonConfig(lr=0.06, rest_lr=0.012)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (["shakespeare-small"], "two contenders at least"),
        (["shakespeare-small", "shakespeare-small"], "two contenders are called"),
        (["a: shakespeare-small", "b: shakespeare-small --data.limit 9"], "alone has --data.limit"),
        (["a: shakespeare-small", "b: shakespeare-small --model.context 9"], r"alone has --model\.context"),
        (["a: shakespeare-small", "b: shakespeare-small lstm"], r"a contender is \[NAME: \]RECIPE"),
        (["a: shakespeare-small", "b: shakespeare-small 'x"], "cannot be read"),
        (["a: shakespeare-small", "b: shakespear-small"], "did you mean"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, texts: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        alike(tmp_path, *texts)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (("toy-copy", "shakespeare-small"), "the task is solve in one and language in the other"),
        (("shakespeare-small", "vowels"), "the task is"),
        (("shakespeare-small", "enwik8"), r"data\.source is plays in one and enwik8 in the other"),
    ],
)
def test_losses_of_other_targets_are_not_compared(texts: tuple[str, ...], part: str) -> None:
    with pytest.raises(UserError, match=part) as problem:
        made_alike(*read_contenders(ComparisonSet("", texts, ()), {}))
    assert "\n" not in str(problem.value)


def test_other_tokenizers_are_not_compared(tmp_path: Path) -> None:
    bytes_ = dump(get("shakespeare-small")) | {"data": {"kind": "text", "tokenizer": "bytes"}}
    other = Contender("coded", load(Experiment, bytes_))
    with pytest.raises(UserError, match=r"data\.tokenizer is characters in one and bytes in the other"):
        made_alike([Contender("plain", get("shakespeare-small")), other], [{}, {}])


def test_a_size_that_a_model_cannot_have_is_refused(all_contenders: list[Contender]) -> None:
    data = all_contenders[0].experiment.data.build(16)
    with pytest.raises(UserError, match="transformer: the smallest gpt"):
        sized(all_contenders[0], data, 100)


@pytest.mark.parametrize("name", SETS)
def test_every_set_can_be_compared(name: str) -> None:
    made = made_alike(*read_contenders(SETS[name], {}))
    assert len(made) == len(SETS[name].contenders)


def test_a_contender_has_a_name() -> None:
    found = ContenderText.parse("wide: shakespeare --model.width 256")
    assert (found.name, found.recipe, found.keys) == ("wide", "shakespeare", {"model.width": "256"})
    assert ContenderText.parse("shakespeare").name == "shakespeare"
