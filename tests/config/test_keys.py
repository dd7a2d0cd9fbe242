"""The keys of a config, for help texts."""

from __future__ import annotations

import config_tree as tree

from regard.config import Key, keys, load, override
from regard.config.key_path import flag_text
from regard.config.table import plain


def by_path(config: object) -> dict[str, Key]:
    return {key.path: key for key in keys(config)}


def test_keys_of_a_class_have_its_defaults() -> None:
    found = by_path(tree.GPTConfig)
    assert found["width"] == Key("width", "int", 128, "features per token")
    assert found["heads"] == Key("heads", "int", 4, "query heads")
    assert found["kv_heads"].help == "key and value heads; as many as query heads if none"
    assert found["kv_heads"].type == "int | none"
    assert found["dropout"] == Key("dropout", "float", 0.0, "share of activations dropped")
    assert found["position"] == Key(
        "position", "choice", "rotary", "how a model knows where a token stands", ("rotary", "learned", "none")
    )
    assert found["position.base"].default == 10_000.0
    assert found["rotary.base"].default == 5.0
    assert found["mask"] == Key("mask", "choice | none", None, "a recursive choice", ("causal", "window", "and"))
    assert found["ngram"].type == "table | none"
    assert found["ngram.orders"] == Key("ngram.orders", "int, ...", (2, 3), "")


def test_keys_of_an_instance_have_its_values() -> None:
    found = by_path(tree.experiment(model=tree.GPTConfig(position=tree.LearnedConfig(7)), seed=3))
    assert found["seed"].default == 3
    assert found["model"] == Key("model", "choice", "gpt", "which model", ("gpt",))
    assert found["model.position"].default == "learned"
    assert found["model.position.length"].default == 7
    assert "model.position.base" not in found
    assert found["train.precision"] == Key("train.precision", "fp32 | bf16", "fp32", "", ("fp32", "bf16"))
    assert found["train.betas"].type == "float, float"
    assert "train.total" not in found


def test_what_has_no_default_is_required() -> None:
    found = by_path(tree.Experiment)
    assert found["model"].required
    assert found["train.steps"] == Key("train.steps", "int", None, "", (), True)
    assert not found["train.rate"].required


def test_every_key_can_be_overridden() -> None:
    config = tree.experiment(
        model=tree.GPTConfig(mask=tree.WindowConfig(3), ngram=tree.NgramConfig(), limits=tree.LimitsConfig())
    )
    argv = [f"--{key.path}={flag_text(plain(key.default))}" for key in keys(config) if key.type != "table | none"]
    assert override(config, argv) == config
    assert override(load(tree.Experiment, {"model": "gpt", "train": {"steps": 1}}), argv) == config
