"""Published sizes, counted on the meta device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.config import override
from regard.models import PRESETS, GPTConfig, describe
from regard.train import Experiment

# The weights of the released checkpoints (Radford et al. 2019), to the parameter.
GPT2 = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
# Brown et al. 2020, table 2.1: rounded there.
GPT3 = {
    "gpt3-small": 125e6,
    "gpt3-medium": 350e6,
    "gpt3-large": 760e6,
    "gpt3-xl": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13e9,
    "gpt3-175b": 175e9,
}
# Twelve matrices of width² and 13 vectors in each layer, as in the released checkpoints.
BERT = {"bert-base": 12 * (12 * 768**2 + 13 * 768), "bert-large": 24 * (12 * 1024**2 + 13 * 1024)}
# Their sizes are tested in test_vit.py.
VIT = ("vit-8x8", "vit-28x28", "vit-32x32", "vit-tiny", "vit-small", "vit-base", "vit-large")


def test_every_preset_is_here() -> None:
    assert set(PRESETS) == {"shakespeare", *GPT2, *GPT3, "transformer-base", "transformer-big", *BERT, *VIT}
    assert PRESETS["shakespeare"] == GPTConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible(name: str) -> None:
    PRESETS[name].check()


@pytest.mark.parametrize(("name", "count"), GPT2.items())
def test_gpt2_sizes_are_exact(name: str, count: int) -> None:
    assert describe(PRESETS[name])["parameters"] == count


@pytest.mark.parametrize(("name", "count"), GPT3.items())
def test_gpt3_sizes_are_the_papers(name: str, count: float) -> None:
    assert describe(PRESETS[name])["parameters"] == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(("name", "count"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_transformer_sizes_are_the_papers(name: str, count: float) -> None:
    """Vaswani et al. 2017, table 3: rounded there."""
    assert describe(PRESETS[name])["parameters"] == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(("name", "count"), BERT.items())
def test_bert_blocks_are_exact(name: str, count: int) -> None:
    assert describe(PRESETS[name])["parameters_in_blocks"] == count


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_chosen_by_name(name: str) -> None:
    assert override(Experiment(), ["--model", name]).model == PRESETS[name]
    assert describe(override(Experiment(), ["--model", name, "--model.layers", "2"]).model)["parameters"] < 2e10


def test_help_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").replace(". ", " ").replace(".\n", " ").split()
    assert set(PRESETS) <= set(words)


def test_describe_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--model", "gpt3-175b"]) == 0
    shown = capsys.readouterr().out
    assert "parameters         174,604,259,328" in shown
    assert "349 GB in bfloat16" in shown
    assert main(["describe"]) == 0
    assert "13.8 MB in float32" in capsys.readouterr().out
    assert main(["describe", "--model", "gpt2-medium", "--model.layers", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["model"]["kind"], record["model"]["width"], record["parameters"]) == ("gpt", 1024, 77_706_240)
    assert main(["describe", "--model", "gtp2-medium"]) == 2
    error = capsys.readouterr().err
    assert '"transformer-base"' in error
    assert "write `--model gpt2-medium`" in error


@pytest.mark.parametrize(
    ("name", "recipe"), [("transformer-base", "translate-transformer"), ("bert-base", "shakespeare-encoder")]
)
def test_a_model_that_the_task_cannot_train_is_refused(
    name: str, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder would predict tokens that it sees."""
    assert main(["train", "shakespeare", "--model", name, "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert "the task language cannot train the" in error
    assert f"regard train {recipe} --model" in error
    assert not (tmp_path / "runs").exists()


def test_gpt3_is_described_without_allocating_it() -> None:
    """700 GB of weights: only shapes are made."""
    with torch.device("meta"):
        model = PRESETS["gpt3-175b"].build()
    assert all(p.is_meta for p in model.parameters())
    found = describe(PRESETS["gpt3-175b"])
    layers, width = 96, 12_288
    per_layer = 12 * width**2 + 13 * width  # four attention matrices, eight of the feed-forward, biases, two norms
    assert found["parameters_in_blocks"] == layers * per_layer
    assert found["parameters"] == layers * per_layer + 50_257 * width + 2048 * width + 2 * width
    assert found["bytes_float32"] == 4 * found["parameters"]
    assert found["bytes_bfloat16"] == 2 * found["parameters"]
    assert found["cache_elements_per_token"] == 2 * layers * width


def test_a_description_is_of_the_model_that_is_built() -> None:
    config = GPTConfig(layers=2, heads=4, kv_heads=2, width=32, ngrams=2, buckets=100)
    model, found = config.build(), describe(config)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    state = model.start(1, 10)
    assert found["cache_elements_per_token"] == sum(x.numel() for layer in state.layers for x in layer) // 10
