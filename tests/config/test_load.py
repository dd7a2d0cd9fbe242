"""Plain values to configs: what is accepted, and what each refusal says."""

# ruff: noqa: E501 - sentences are compared whole
from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Optional

import config_tree as tree
import pytest

from regard.config import Choice, dump, load
from regard.errors import UserError

if TYPE_CHECKING:
    from fractions import Fraction

MINIMAL = {"model": "gpt", "train": {"steps": 10}}


def model(**keys: Any) -> dict[str, Any]:
    return {**MINIMAL, "model": {"kind": "gpt", **keys}}


def train(**keys: Any) -> dict[str, Any]:
    return {**MINIMAL, "train": {"steps": 10, **keys}}


def refusal(given: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(tree.Experiment, given, "config.toml")
    return str(caught.value)


def test_what_is_left_out_takes_its_default() -> None:
    assert load(tree.Experiment, MINIMAL) == tree.experiment()


def test_a_choice_is_a_kind_or_a_table_with_one() -> None:
    for given in ("rotary", {"kind": "rotary"}):
        assert load(tree.PositionConfig, given) == tree.RotaryConfig()  # type: ignore[arg-type]
    assert load(tree.ModelConfig, {"kind": "gpt", "width": 64}) == tree.GPTConfig(width=64)
    assert load(tree.GPTConfig, {"width": 64}) == tree.GPTConfig(width=64)


def test_a_table_starts_from_its_own_class_not_from_the_field_it_stands_in() -> None:
    # GPTConfig.rotary is RotaryConfig(base=5.0); `rotary = {}` says RotaryConfig(), as it does everywhere else.
    config = load(tree.Experiment, model(rotary={}))
    assert config.model == tree.GPTConfig(rotary=tree.RotaryConfig())


def test_whole_numbers_serve_as_floats_and_become_them() -> None:
    config = load(tree.RotaryConfig, {"base": 5})
    assert type(config.base) is float


def test_infinity_is_a_number_and_nan_is_not() -> None:
    assert load(tree.RotaryConfig, {"base": float("-inf")}).base == float("-inf")
    assert refusal(model(dropout=float("nan"))) == (
        "config.toml: `model.dropout` is nan, but must be a number; write `dropout = 0.0`"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (model(widht=3), "unknown key `model.widht`; did you mean `model.width`?"),
        ({**MINIMAL, "steps": 3}, "unknown key `steps`; did you mean `train.steps`?"),
        ({**MINIMAL, "rte": 3}, "unknown key `rte`; did you mean `train.rate`?"),
        ({**MINIMAL, "zzz": 3}, "unknown key `zzz`; the config has the keys `model`, `train`, `seed`, `path`, `λ`"),
        (
            model(position={"kind": "rotary", "zzz": 1}),
            'unknown key `model.position.zzz`; `model.position` of kind "rotary" has the keys `base`, `share`',
        ),
        (
            model(position={"kind": "none", "zzz": 1}),
            'unknown key `model.position.zzz`; `model.position` of kind "none" has no keys, so leave it out',
        ),
        (
            model(position={"kind": "learned", "base": 5.0}),
            'unknown key `model.position.base`: `model.position` is of kind "learned", and `base` belongs to kind '
            '"rotary"; write `kind = "rotary"` too, or leave the key out',
        ),
        (train(total=1), "unknown key `train.total`; `train` has the keys `steps`, `rate`, "),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_the_nearest_known_one(given: Any, says: str) -> None:
    assert refusal(given).startswith(f"config.toml: {says}")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (model(width="256"), 'the text "256", but must be a whole number; write `width = 256`'),
        (model(width=5e3), "the number 5000.0, but must be a whole number; write `width = 5000`"),
        (model(width=0.5), "the number 0.5, but must be a whole number; write `width = 128`"),
        (model(width=True), "true, but must be a whole number; write `width = 128`"),
        (model(width=[1]), "a list, but must be a whole number; write `width = 128`"),
        (model(width={"x": 1}), "a table, but must be a whole number; write `width = 128`"),
        (model(width=datetime.date(2020, 1, 2)), "the date 2020-01-02, but must be a whole number; write `width = 128`"),
        (model(width=None), "None, but must be a whole number; write `width = 128`"),
        (model(dropout=True), "true, but must be a number; write `dropout = 0.0`"),
        (model(dropout="0.25"), 'the text "0.25", but must be a number; write `dropout = 0.25`'),
        (model(dropout=10**400), "the whole number 1000"),
        (model(bias=1), "the whole number 1, but must be true or false; write `bias = true`"),
        (model(bias="off"), 'the text "off", but must be true or false; write `bias = false`'),
        (model(kv_heads="two"), 'the text "two", but must be a whole number, or "none"; write `kv_heads = 64`'),
        (model(ngram=3), "the whole number 3, but must be a table of `orders`, `buckets`; write `ngram = {orders = [2, 3]}`"),
        (model(position=5), 'the whole number 5, but must be one of the kinds "rotary", "learned", "none"; write `position = "rotary"`'),
        (model(position={"kind": 5}), 'the whole number 5, but must be one of the kinds "rotary", "learned", "none"; write `kind = "rotary"`'),
        (train(note=5), 'the whole number 5, but must be text; write `note = "5"`'),
        (train(note="x\ud800"), "'x\\ud800', which is not valid Unicode text; rename it"),
        (train(precision="bf61"), 'the text "bf61", but must be one of "fp32", "bf16"; write `precision = "bf16"`'),
        (train(level=True), 'true, but must be one of 1, 2, "auto", false; write `level = 1`'),
        (train(level=0), 'the whole number 0, but must be one of 1, 2, "auto", false; write `level = 1`'),
        (train(tags="a"), 'the text "a", but must be a list, each text; write `tags = ["a"]`'),
        (train(tags=["a", 5]), 'the whole number 5, but must be text; write `"5"`'),
        (train(betas=[0.9]), "a list of 1, but must be a list of 2, each a number; write `betas = [0.9, 0.95]`"),
        (train(grid=[[1], 2]), "the whole number 2, but must be a list, each a whole number; write `[2]`"),
    ],
)  # fmt: skip
def test_a_wrong_type_says_what_was_given_and_what_to_write(given: Any, says: str) -> None:
    assert f" is {says}" in refusal(given)
    assert refusal(given).startswith(("config.toml: `model.", "config.toml: `train."))


def test_an_element_of_a_list_is_named_by_its_index() -> None:
    assert "`train.tags[1]`" in refusal(train(tags=["a", 5]))
    assert "`model.mask.parts[0].width`" in refusal(model(mask={"kind": "and", "parts": [{"kind": "window"}]}))


def test_a_bad_kind_lists_the_known_ones() -> None:
    known = 'but must be one of the kinds "rotary", "learned", "none"'
    assert refusal(model(position="rotray")) == (
        f'config.toml: `model.position` is the text "rotray", {known}; write `position = "rotary"`'
    )
    assert refusal(model(position={"kind": "learnt"})) == (
        f'config.toml: `model.position` is of kind "learnt", {known}; write `kind = "learned"`'
    )
    assert refusal(model(position={"base": 5.0})) == (
        'config.toml: `model.position` needs a kind, one of the kinds "rotary", "learned", "none"; '
        'write `kind = "rotary"`'
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "gpt"}, "missing key `train`, a table without a default; add `[train]`"),
        ({"model": "gpt", "train": {}}, "missing key `train.steps`, a whole number without a default; add `steps = 64`"),
        ({"train": {"steps": 1}}, 'missing key `model`, the kind "gpt" without a default; add `[model]` with `kind = "gpt"`'),
    ],
)  # fmt: skip
def test_a_missing_key_says_what_to_add(given: Any, says: str) -> None:
    assert refusal(given) == f"config.toml: {says}"


def test_a_config_objects_in_its_own_words_and_the_place_is_added() -> None:
    assert refusal(model(heads=3)) == "config.toml: `model`: width (128) must be a multiple of heads (3)"
    assert refusal(train(steps=-1)).startswith("config.toml: `train`: steps is -1")
    with pytest.raises(UserError, match=r"^config: width \(128\) must be"):
        load(tree.GPTConfig, {"heads": 3})


@dataclass(frozen=True)
class Wrapped:
    """The default itself would not pass its own check."""

    model: tree.ModelConfig = tree.GPTConfig(heads=3)  # noqa: RUF009 - it is frozen
    models: tuple[tree.ModelConfig, ...] = ()


def test_defaults_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"`model`: width"):
        load(Wrapped, {})
    with pytest.raises(UserError, match=r"`models\[1\]`: width"):
        load(Wrapped, {"model": "gpt", "models": ["gpt", {"kind": "gpt", "heads": 3}]})


def test_none_is_written_only_where_it_is_not_the_default() -> None:
    config = tree.experiment(path=None, model=tree.GPTConfig(kv_heads=None, tied=None, labels=(None, "b")))
    table = dump(config)
    assert table["path"] == "none"
    assert table["model"]["tied"] == "none"
    assert table["model"]["labels"] == ["none", "b"]
    assert "kv_heads" not in table["model"]
    assert load(tree.Experiment, table) == config


def test_every_other_key_is_written_and_a_choice_leads_with_its_kind() -> None:
    table = dump(tree.experiment())
    assert next(iter(table["model"])) == "kind"
    assert table["model"]["position"] == {"kind": "rotary", "base": 10_000.0}
    assert table["train"]["rate"] == 1e-8
    assert "total" not in table["train"]  # no argument of the class: it follows from the others


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"path": "none"}, "`path` is 'none', but a file would give back None"),
        ({"seed": "1"}, '`seed` is the text "1", but must be a whole number'),
        ({"λ": float("nan")}, "`λ` is nan, but must be a number"),
        ({"train": replace(tree.TrainConfig(1), tags=["a"])}, r"`train.tags` is ['a'], but a file would give back ('a',)"),
    ],
)  # fmt: skip
def test_what_could_not_be_read_back_is_not_written(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        dump(tree.experiment(**changes))
    assert str(caught.value).startswith(f"Experiment: {says}")


@dataclass(frozen=True)
class OldSpelling:
    maybe: Optional[int] = None  # noqa: UP045 - the old spelling is to be understood as well


@dataclass(frozen=True)
class TooOpen:
    value: int | str = 1


@dataclass(frozen=True)
class NullInLiteral:
    value: Literal["a", None] = None


@dataclass(frozen=True)
class Lookalikes:
    value: Literal[1, "1"] = 1


@dataclass(frozen=True)
class NoneTwice:
    value: Literal["none", "some"] | None = None


@dataclass
class Thawed:
    value: int = 1


@dataclass(frozen=True)
class Unimported:
    value: Fraction


class LonelyConfig(Choice):
    """A union whose members nobody imported."""


@pytest.mark.parametrize(
    ("cls", "given", "says"),
    [
        (TooOpen, {}, "configs cannot hold int | str"),
        (NullInLiteral, {}, r"use .* `Literal\[...\] \| None` for None"),
        (Lookalikes, {}, "look the same"),
        (NoneTwice, {"value": "none"}, '"none" is one of its own values'),
        (Thawed, {}, r"make it a @dataclass\(frozen=True\)"),
        (Unimported, {"value": 1}, "'Fraction' is not defined; its module must import"),
        (LonelyConfig, "x", "has no kinds yet: import the module"),
        (int, 5, "is not a config"),
    ],
)
def test_a_class_that_cannot_be_a_config_is_its_authors_mistake(cls: Any, given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says.replace("int | str", r"int \| str")):
        load(cls, given)


def test_the_old_spelling_of_optional_is_understood() -> None:
    assert load(OldSpelling, {"maybe": "none"}) == OldSpelling()
    assert load(OldSpelling, {"maybe": 3}) == OldSpelling(3)
