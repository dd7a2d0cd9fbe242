"""ViT against `transformers`, with every head, at the trained resolution and others: import, export and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import in_float64, randomized

from regard.convert.compare import layer_differences
from regard.convert.hub import read_hub, write_hub
from regard.errors import UserError
from regard.models import ViTConfig
from regard.nn.heads import ClassesHeadConfig, NoHeadConfig
from regard.nn.positions.grid import GridRotaryConfig

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"image_size": 32, "patch_size": 8}
LABELS = {0: "cat", 1: "dog", 2: "fish"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "features": ("Model", {}),
    "classes": ("ForImageClassification", {"id2label": LABELS}),
    "without query biases": ("Model", {"qkv_bias": False}),
    "gray, another norm and activation": (
        "ForImageClassification",
        {"num_channels": 1, "layer_norm_eps": 1e-6, "hidden_act": "gelu_new", "num_labels": 7},
    ),
}


def oracle(head: str, fields: dict[str, Any]) -> Any:
    config = transformers.ViTConfig(**SIZES, **fields)
    config._attn_implementation = "eager"
    bare = {"add_pooling_layer": False} if head == "Model" else {}
    return getattr(transformers, f"ViT{head}")(config, **bare)


def outputs(found: Any) -> torch.Tensor:
    return found.logits if "logits" in found else found.last_hidden_state


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest output."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


@pytest.mark.parametrize(("head", "fields"), CASES.values(), ids=CASES)
def test_it_equals_transformers_and_comes_back(head: str, fields: dict[str, Any], tmp_path: Path) -> None:
    theirs = randomized(oracle(head, fields))
    theirs.save_pretrained(tmp_path / "theirs")
    config, weights, certificate, *_ = read_hub(tmp_path / "theirs")
    model = config.build().eval()
    model.load_state_dict(weights)
    assert certificate.parameters == sum(weight.numel() for weight in theirs.parameters())
    assert not certificate.unused
    generator = torch.Generator().manual_seed(1)
    exact = in_float64(lambda: oracle(head, fields), theirs)
    channels = fields.get("num_channels", 3)
    for rows, columns in ((32, 32), (48, 16), (8, 40)):  # the trained resolution and others
        images = torch.randn(2, channels, rows, columns, generator=generator, dtype=torch.float64)
        given = {"interpolate_pos_encoding": (rows, columns) != (32, 32)}
        with torch.no_grad():
            assert gap(model(images.float()), outputs(theirs(images.float(), **given))) <= 1e-4
            assert gap(model.double()(images), outputs(exact(images, **given))) <= 1e-9
        model.float()
    write_hub(tmp_path / "ours", config, model, None)
    auto = transformers.AutoModelForImageClassification if head != "Model" else transformers.AutoModel
    bare = {"add_pooling_layer": False} if head == "Model" else {}
    again = auto.from_pretrained(tmp_path / "ours", attn_implementation="eager", **bare)
    first, second = theirs.float().state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert again.config.id2label == theirs.config.id2label
    _, back, *_ = read_hub(tmp_path / "ours")
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def saved(folder: Path, head: str = "Model", **fields: Any) -> Any:
    """A random model in the hub's layout, with a pooler if its class has one."""
    model = randomized(getattr(transformers, f"ViT{head}")(transformers.ViTConfig(**SIZES, **fields)))
    model.save_pretrained(folder)
    return model


def test_the_pooler_of_a_bare_model_is_declared_unused(tmp_path: Path) -> None:
    saved(tmp_path)
    config, _, certificate, *_ = read_hub(tmp_path)
    assert isinstance(config, ViTConfig)
    assert isinstance(config.head, NoHeadConfig)
    assert certificate.unused == ["vit.pooler.dense.bias", "vit.pooler.dense.weight"]


def test_the_certificate_has_the_difference_to_transformers(tmp_path: Path) -> None:
    saved(tmp_path, "ForImageClassification", num_labels=4)
    assert layer_differences(tmp_path, read_hub(tmp_path))["logits"] <= 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architecture ViTForMaskedImageModeling cannot be imported"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"image_size": [32, 48]}, "image_size is"),
        ({"patch_size": 7}, "no whole number of patches of 7"),
        ({"patch_size": 4}, "has the shape"),
        ({"use_distillation": True}, "has the field 'use_distillation'"),
    ],
)
def test_what_cannot_be_imported_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    with pytest.raises(UserError, match=message):
        read_hub(tmp_path)


def test_a_vit_without_a_published_form_is_refused(tmp_path: Path) -> None:
    base = ViTConfig(width=16, heads=2, layers=1)
    mean = replace(base, class_token=False, head=ClassesHeadConfig(3, pool="mean"))
    for config in (replace(base, position=GridRotaryConfig()), mean, replace(base, qk_norm=True)):
        with pytest.raises(UserError, match="no family of published models has the parts of this vit"):
            write_hub(tmp_path / "out", config, config.build(), None)
