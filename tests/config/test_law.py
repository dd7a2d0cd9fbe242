"""The laws: what is written is read back, and the command line and the TOML give the same config."""

from __future__ import annotations

import tomllib
from typing import Any

import config_tree as tree
import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from regard.config import dump, load, notation, override, to_toml

texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [
        '"quoted"',
        "a\nb",
        "a\r\n",
        "\\",
        "é 字 🙂",
        "--x",
        "-1",
        "a,b",
        "[1]",
        "{}",
        "true",
        "#",
        "\x00\x7f",
        "'",
        "'''",
    ]
)
words = texts.filter(lambda text: text != "none")  # where a field may be None, that word stands for it
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False) | st.sampled_from([1e-8, 5e5, -0.0, 1e16, 1e-320, 0.1 + 0.2, float("-inf")])

rotaries = st.builds(tree.RotaryConfig, base=floats, share=st.none() | floats)
positions = rotaries | st.builds(tree.LearnedConfig, length=integers) | st.builds(tree.NoPositionConfig)
masks = st.recursive(
    st.builds(tree.CausalConfig) | st.builds(tree.WindowConfig, width=integers),
    lambda inner: st.builds(tree.AndConfig, parts=st.lists(inner, max_size=3).map(tuple)),
    max_leaves=4,
)
ngrams = st.builds(tree.NgramConfig, orders=st.lists(integers, max_size=3).map(tuple), buckets=st.none() | integers)
models = st.builds(
    lambda heads, times, **rest: tree.GPTConfig(width=heads * times, heads=heads, **rest),
    heads=st.integers(1, 64),
    times=st.integers(-3, 64),
    kv_heads=st.none() | integers,
    dropout=floats,
    bias=st.booleans(),
    tied=st.none() | st.booleans(),
    position=positions,
    mask=st.none() | masks,
    ngram=st.none() | ngrams,
    limits=st.none() | st.builds(tree.LimitsConfig, memory=st.none() | integers),
    rotary=rotaries,
    labels=st.lists(st.none() | words, max_size=3).map(tuple),
)
trainings = st.builds(
    tree.TrainConfig,
    steps=st.integers(0, 2**40),
    rate=floats,
    betas=st.tuples(floats, floats),
    precision=st.sampled_from(["fp32", "bf16"]),
    level=st.sampled_from([1, 2, "auto", False]),
    compile=st.booleans(),
    tags=st.lists(texts, max_size=3).map(tuple),
    grid=st.lists(st.lists(integers, max_size=2).map(tuple), max_size=2).map(tuple),
    pair=st.tuples(st.booleans(), texts),
    note=texts,
)
experiments = st.builds(tree.Experiment, model=models, train=trainings, seed=integers, path=st.none() | words, λ=floats)

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure


def arguments(table: dict[str, Any], prefix: str, draw: st.DataObject) -> list[tuple[str, ...]]:
    """The command line that says what a dumped table says, one flag at a time."""
    found: list[tuple[str, ...]] = []
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and draw.draw(st.booleans(), label=f"{path} key by key") and value:
            found += arguments(value, f"{path}.", draw)
            continue
        if name == "kind" and prefix:
            path = draw.draw(st.sampled_from([path, prefix[:-1]]), label="spelling of the kind")
        if value is False and draw.draw(st.booleans(), label="negated"):
            found.append((f"--no-{path}",))
            continue
        text = value if isinstance(value, str) else notation.value(value)
        if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
            text = draw.draw(st.sampled_from([text, text[1:-1], text[1:-1].replace(" ", "")]), label="list")
        joined = text.startswith("--") or draw.draw(st.booleans(), label="joined")
        found.append((f"--{path}={text}",) if joined else (f"--{path}", text))
    return found


@law
@given(experiments)
def test_what_is_dumped_is_loaded(config: tree.Experiment) -> None:
    again = load(tree.Experiment, dump(config))
    assert again == config
    assert repr(again) == repr(config)  # the types too: 1 == 1.0 == True


@law
@given(experiments)
def test_toml_is_exact(config: tree.Experiment) -> None:
    parsed = tomllib.loads(to_toml(config))
    assert repr(parsed) == repr(reordered(dump(config), parsed))
    assert repr(load(tree.Experiment, parsed)) == repr(config)


def reordered(table: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """`table` with its keys in the order of `like`, which must have the same ones."""
    assert table.keys() == like.keys()
    return {
        name: reordered(table[name], value) if isinstance(value, dict) else table[name] for name, value in like.items()
    }


@law
@given(experiments, st.data())
def test_the_command_line_and_the_toml_give_the_same_config(config: tree.Experiment, draw: st.DataObject) -> None:
    start = tree.experiment()  # all defaults: None is left out where it is the default
    flags = draw.draw(st.permutations(arguments(dump(config), "", draw)), label="flags")
    argv = [argument for flag in flags for argument in flag]
    assert repr(override(start, argv)) == repr(load(tree.Experiment, tomllib.loads(to_toml(config))))


@law
@given(experiments, experiments)
def test_overriding_all_of_another_config_leaves_nothing_of_it(config: tree.Experiment, other: tree.Experiment) -> None:
    """A whole table replaces what stood there, even keys it leaves to their defaults."""
    argv = [
        f"--{name}={value if isinstance(value, str) else notation.value(value)}" for name, value in dump(config).items()
    ]
    assert override(other, argv) == config


@law
@given(experiments)
def test_overriding_nothing_changes_nothing(config: tree.Experiment) -> None:
    assert override(config, []) == config
