"""Configs from the command line."""

# ruff: noqa: E501 - sentences are compared whole
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import config_tree as tree
import pytest

from regard.config import override
from regard.errors import UserError

START = tree.experiment()


def model_of(config: tree.Experiment) -> tree.GPTConfig:
    assert isinstance(config.model, tree.GPTConfig)
    return config.model


def changed(*argv: str, start: tree.Experiment = START) -> tree.GPTConfig:
    return model_of(override(start, list(argv)))


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        override(START, list(argv))
    return str(caught.value)


def test_values_of_every_simple_type() -> None:
    argv = ["--model.width", "256", "--model.bias=true", "--model.dropout", "1e-1", "--seed", "-3", "--path", "x=y"]
    config = override(START, [*argv, "--train.level", "false", "--train.note=", "--train.tags", ""])
    expected = replace(START, model=tree.GPTConfig(width=256, bias=True, dropout=0.1), seed=-3, path="x=y")
    assert config == replace(expected, train=tree.TrainConfig(10, level=False))


def test_what_is_not_mentioned_stays() -> None:
    start = tree.experiment(model=tree.GPTConfig(width=512, position=tree.LearnedConfig(99)), seed=7)
    config = override(start, ["--model.heads", "8"])
    assert config == replace(start, model=replace(model_of(start), heads=8))
    assert start.model == tree.GPTConfig(width=512, position=tree.LearnedConfig(99))


def test_no_value_and_negation() -> None:
    start = tree.experiment(model=tree.GPTConfig(bias=True, kv_heads=2))
    assert changed("--model.kv_heads", "none", "--no-model.bias", "--no-model.tied", start=start) == tree.GPTConfig(
        tied=False
    )
    assert override(START, ["--path", "none"]).path is None


def test_lists() -> None:
    assert override(START, ["--train.betas", "0.5,1"]).train.betas == (0.5, 1.0)
    assert override(START, ["--train.betas", "[0.5, 1]"]).train.betas == (0.5, 1.0)
    assert override(START, ["--train.tags", "a, b"]).train.tags == ("a", "b")
    assert override(START, ["--train.tags", '["a, b", ""]']).train.tags == ("a, b", "")
    assert override(START, ["--train.grid", "[[1, 2], []]"]).train.grid == ((1, 2), ())
    assert changed("--model.labels", "none,x").labels == (None, "x")
    masks = changed("--model.mask", "and", "--model.mask.parts", "causal,causal").mask
    assert masks == tree.AndConfig((tree.CausalConfig(), tree.CausalConfig()))


@pytest.mark.parametrize("kind", ["--model.position", "--model.position.kind"])
def test_a_kind_and_its_keys_in_any_order(kind: str) -> None:
    flags = ["--model.position.length", "5", kind, "learned"]
    assert changed(*flags).position == changed(*flags[2:], *flags[:2]).position == tree.LearnedConfig(5)


def test_another_kind_starts_afresh_and_the_same_kind_keeps_its_values() -> None:
    start = tree.experiment(model=tree.GPTConfig(position=tree.RotaryConfig(5e5, share=0.5)))
    assert changed("--model.position", "rotary", start=start).position == tree.RotaryConfig(5e5, share=0.5)
    assert changed("--model.position.base", "3", start=start).position == tree.RotaryConfig(3.0, share=0.5)
    assert changed("--model.position", "learned", start=start).position == tree.LearnedConfig()
    whole = changed("--model.position", "{kind = 'rotary', base = 3}", start=start).position
    assert whole == tree.RotaryConfig(3.0)  # a whole table replaces what was there
    assert changed("--model.position", "none").position == tree.NoPositionConfig()


def test_a_table_that_was_none_begins_with_its_defaults() -> None:
    assert changed("--model.ngram.buckets", "5").ngram == tree.NgramConfig(buckets=5)
    assert changed("--model.ngram", "{}").ngram == tree.NgramConfig()
    start = tree.experiment(model=tree.GPTConfig(ngram=tree.NgramConfig()))
    assert changed("--model.ngram", "none", start=start).ngram is None


def test_a_choice_can_be_the_whole_config() -> None:
    assert override(tree.RotaryConfig(), ["--base", "3"]) == tree.RotaryConfig(3.0)
    with pytest.raises(UserError, match='but must be the kind "rotary"; write `--kind rotary`'):
        override(tree.RotaryConfig(), ["--kind", "learned"])  # the type of a config does not change


@pytest.mark.parametrize("argv", [["--seed", "2", "--seed=2"], ["--no-model.bias", "--model.bias=true"]])
def test_a_key_given_twice_is_refused(argv: list[str]) -> None:
    assert "is given twice" in refusal(*argv)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--model.widht", "3"], "unknown key `--model.widht`; did you mean `--model.width`?"),
        (["--steps", "3"], "unknown key `--steps`; did you mean `--train.steps`?"),
        (["--base", "3"], "unknown key `--base`; did you mean `--model.position.base`?"),
        (["--model.width.x", "3"], "unknown key `--model.width.x`: `--model.width` is a whole number and has no keys below it"),
        (["--no-model.biass"], "unknown key `--model.biass`; did you mean `--model.bias`?"),
        (["--model.width"], "`--model.width` has no value; write `--model.width VALUE`"),
        (["--model.bias", "--seed", "3"], "`--model.bias` has no value; write `--model.bias VALUE` (true or false for a switch)"),
        (["3"], "`3` belongs to no key; write `--key value`"),
        (["--seed", "3", "4"], "`4` belongs to no key"),
        (["-s", "3"], "`-s` belongs to no key"),
        (["--"], "`--` belongs to no key"),
        (["--model..x", "3"], "`--model..x` is not a key"),
        (["--=3"], "`--` is not a key"),
        (["--model.width", "5e3"], '`--model.width` is "5e3", but must be a whole number; write `--model.width 5000`'),
        (["--model.width="], '`--model.width` is "", but must be a whole number; write `--model.width 128`'),
        (["--model.dropout", "nan"], '`--model.dropout` is "nan", but must be a number; write `--model.dropout 0.0`'),
        (["--model.bias", "True"], '`--model.bias` is "True", but must be true or false; write `--model.bias true`'),
        (["--no-model.width"], "`--model.width` is false, but must be a whole number; write `--model.width 128`"),
        (["--no-train.note"], "`--train.note` is false, but must be text; write `--train.note false`"),
        (["--no-model.bias=x"], "`--no-model.bias` takes no value; write `--no-model.bias` or `--model.bias x`"),
        (["--model.kv_heads", "None"], '`--model.kv_heads` is "None", but must be a whole number, or "none"'),
        (["--train.precision", "bf"], '`--train.precision` is "bf", but must be one of "fp32", "bf16"; write `--train.precision bf16`'),
        (["--train.betas", "0.9"], "`--train.betas` is a list of 1, but must be a list of 2, each a number; write `--train.betas 0.9,0.95`"),
        (["--train.betas", "0.9,x"], '`--train.betas[1]` is "x", but must be a number; write `0.5`'),
        (["--train.betas", "[0.9"], '`--train.betas` is "[0.9", which is not a TOML list: Unclosed array'),
        (["--train.tags", "['a']\nx = 1"], "`--train.tags` is \"['a']\\nx = 1\", which is not a TOML list: more than one"),
        (["--model.position", "rotray"], '`--model.position` is "rotray", but must be one of the kinds "rotary", "learned", "none"; write `--model.position rotary`'),
        (["--model.position.length", "3"], 'unknown key `--model.position.length`: `--model.position` is of kind "rotary", and `length` belongs to kind "learned"; write `--model.position learned` too'),
        (["--model.position", "rotary", "--model.position.kind", "learned"], "`--model.position` is given two kinds, `rotary`, `learned`"),
        (["--model.mask.width", "3"], '`--model.mask` needs a kind, one of the kinds "causal", "window", "and"; write `--model.mask causal`'),
        (["--model.mask", "window"], "missing key `--model.mask.width`, a whole number without a default; add `--model.mask.width 64`"),
        (["--train", "x"], '`--train` is "x", but must be a table of `steps`'),
        (["--train", "x", "--train.steps", "3"], '`--train` is "x", but must be a table of `steps`'),
        (["--train", "{steps = 3"], '`--train` is "{steps = 3", which is not a TOML table'),
        (["--train", "{steps = 3}", "--train.rate", "3"], "`--train` is given whole, so write `rate` inside it"),
        (["--model.ngram", "none", "--model.ngram.orders", "3"], "`--model.ngram` is set to none and `--model.ngram.orders` to a value"),
        (["--model.heads", "3"], "`--model`: width (128) must be a multiple of heads (3)"),
        (["--train.steps", "-1"], "`--train`: steps is -1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_as_it_was_typed(argv: list[str], says: str) -> None:
    assert refusal(*argv).startswith(f"command line: {says}")


@dataclass(frozen=True)
class LongerTraining(tree.TrainConfig):
    warmup: int = 0


def test_a_subclass_in_a_field_is_not_cut_down_in_silence() -> None:
    start: Any = tree.experiment(train=LongerTraining(3, warmup=2))
    with pytest.raises(TypeError, match="declared as TrainConfig but holds a LongerTraining"):
        override(start, ["--train.steps", "4"])
