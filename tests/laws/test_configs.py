"""Law 7: the command line and the TOML give the same model, for the real GPT's config."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from gpts import configs
from hypothesis import given
from strategies import examples

from regard.config import Choice, dump, kinds, load, notation, override, to_toml
from regard.config.table import ChoiceShape, Table, table_of
from regard.errors import UserError
from regard.models import PRESETS, GPTConfig, ModelConfig
from regard.train.experiment import Experiment, TrainConfig

starts = st.sampled_from([GPTConfig(), *(preset for preset in PRESETS.values() if isinstance(preset, GPTConfig))])
whole = st.integers(1, 2**40)
shares = st.floats(0, 1, exclude_max=True)


@st.composite
def any_configs(draw: st.DrawFn) -> GPTConfig:
    """A GPT that would build, or its twin with sizes that no machine holds."""
    config = draw(configs())
    if draw(st.booleans()):
        return config
    table = dump(config)
    heads = draw(st.integers(1, 128))
    table |= {"heads": heads, "kv_heads": 1, "width": heads * draw(whole), "vocabulary": draw(whole)}
    table |= {"context": draw(whole), "dropout": draw(shares), "cap": draw(st.floats(1e-3, 1e9))}
    table |= {"projection": {"kind": "separate"}}  # the others want heads of a certain width or number
    return load(GPTConfig, table)


def flags(table: dict[str, Any], data: st.DataObject, prefix: str = "") -> list[list[str]]:
    """The command line that says what a table says: a choice key by key, or as one table in TOML."""
    found: list[list[str]] = []
    for name, value in table.items():
        path = prefix + name
        if isinstance(value, dict) and data.draw(st.booleans(), label=f"{path} key by key"):
            kind = {k: v for k, v in value.items() if k == "kind"}
            found += [[f"--{path}", v] for v in kind.values()]
            found += flags({k: v for k, v in value.items() if k != "kind"}, data, f"{path}.")
        elif isinstance(value, bool) and data.draw(st.booleans(), label=f"{path} as a switch"):
            found.append([f"--{path}", "true"] if value else [f"--no-{path}"])
        else:
            text = value if isinstance(value, str) else notation.value(value)
            found.append(data.draw(st.sampled_from([[f"--{path}={text}"], [f"--{path}", text]]), label=path))
    return found


def with_nones(table: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """None is left out of a table where it is the default: a start that has a value there needs to hear it."""
    missing = {name: "none" for name in start if name not in table}
    inner = {name: with_nones(v, start.get(name, {})) for name, v in table.items() if isinstance(v, dict)}
    own = {name: v for name, v in table.items() if not isinstance(v, dict)}
    for name, below in inner.items():
        if below.get("kind") != start.get(name, {}).get("kind"):
            inner[name] = table[name]  # another kind starts from its own defaults
    return own | inner | missing


@examples(3)
@given(any_configs(), starts, st.data())
def test_the_command_line_and_the_toml_give_the_same_model(
    config: GPTConfig, start: GPTConfig, data: st.DataObject
) -> None:
    table = with_nones({k: v for k, v in dump(config).items() if k != "kind"}, dump(start) | {})
    table.pop("kind", None)
    argv = [word for flag in data.draw(st.permutations(flags(table, data)), label="flags") for word in flag]
    from_toml = load(ModelConfig, {"kind": "gpt"} | tomllib.loads(to_toml(config)))
    assert from_toml == config
    assert repr(from_toml) == repr(config)
    assert repr(override(start, argv)) == repr(from_toml)


@given(any_configs())
def test_what_is_written_is_read_back(config: GPTConfig) -> None:
    assert load(ModelConfig, {"kind": "gpt"} | dump(config)) == config
    assert load(GPTConfig, tomllib.loads(to_toml(config))) == config


@examples(10)
@given(any_configs())
def test_python_takes_the_tables_of_the_toml(config: GPTConfig) -> None:
    table = dump(config)
    tables: Any = {one.name: table.get(one.name) for one in fields(config) if isinstance(table.get(one.name), dict)}
    assert replace(GPTConfig(), **(vars(config) | tables)) == config


def choice_fields() -> list[tuple[type, str, type[Choice]]]:
    """Every field of every config that is a choice."""
    found, todo = [], [Table(Experiment), Table(TrainConfig)]
    while todo:
        table = todo.pop()
        for name, (_, shape) in table.fields.items():
            if isinstance(shape, ChoiceShape) and (table.cls, name, shape.cls) not in found:
                found.append((table.cls, name, shape.cls))
                todo += [table_of(member) for member in shape.kinds.values()]
    return found


@pytest.mark.parametrize(("cls", "name", "union"), choice_fields())
def test_every_choice_takes_the_name_of_a_kind(cls: type, name: str, union: type[Choice]) -> None:
    for kind, member in kinds(union).items():
        if all(field.default is not MISSING or field.default_factory is not MISSING for field in fields(member)):  # pyright: ignore[reportArgumentType]
            assert getattr(cls(**{name: kind}), name) == member()
            assert getattr(cls(**{name: {"kind": kind}}), name) == member()
    wrong: list[dict[str, Any]] = [{name: "nothing"}, {name: {"kind": "nothing"}}, {name: {"nothing": 1}}]
    for values in wrong:
        with pytest.raises(UserError) as in_python:
            cls(**values)
        with pytest.raises(UserError) as in_toml:
            load(cls, values, cls.__name__)
        assert str(in_python.value).split("; write")[0] == str(in_toml.value).split("; write")[0]


def test_choices_by_name_in_python() -> None:
    named: Any = {"position": "learned", "attention": {"kind": "window", "size": 8}}
    assert override(GPTConfig(), ["--position", "learned", "--attention", "{kind='window', size=8}"]) == GPTConfig(
        **named
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"position": "lerned"}, 'write `position = "learned"`'),
        ({"attention": {"kind": "window", "size": 0}}, "size"),
    ]
    for values, expected in wrong:
        with pytest.raises(UserError, match=expected):
            GPTConfig(**values)
