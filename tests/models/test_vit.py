"""The Vision Transformer: its class token, its positions, other resolutions, and the published sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models import PRESETS, ViT, ViTConfig, describe
from regard.nn.heads import ClassesHeadConfig, NoHeadConfig, TokensHeadConfig
from regard.nn.positions.grid import (
    GridLearnedConfig,
    GridPositionConfig,
    GridRasterConfig,
    GridRelativeConfig,
    GridRotaryConfig,
    GridSinusoidalConfig,
    NoGridConfig,
    patches,
)
from regard.nn.positions.position import Sinusoidal

SMALL = ViTConfig(image=12, channels=2, patch=3, width=16, layers=2, heads=4)
MEAN = replace(SMALL, class_token=False, head=ClassesHeadConfig(10, pool="mean"))
POSITIONS = [GridLearnedConfig(), GridRasterConfig(), GridSinusoidalConfig(), GridRotaryConfig(), GridRelativeConfig()]


def built(config: ViTConfig) -> ViT:
    """The model in float64 with the same weights each time, none of them zero."""
    torch.manual_seed(1)
    model = config.build().double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) / 8)
    return model


def images(rows: int = 12, columns: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(3, 2, rows, columns, generator=generator, dtype=torch.float64)


def shuffled(pictures: torch.Tensor, patch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same patches in another order, and the order."""
    from regard.nn.patches import cut, joined

    flat = cut(pictures, patch)
    order = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(3))
    return joined(flat[:, order], pictures.shape[3] // patch, pictures.shape[1]), order


@pytest.mark.parametrize("config", [SMALL, MEAN], ids=["class token", "mean"])
def test_without_positions_an_image_is_a_set_of_patches(config: ViTConfig) -> None:
    model = built(replace(config, position=NoGridConfig()))
    assert not model.positional
    other, order = shuffled(images(), 3)
    torch.testing.assert_close(model(other), model(images()))
    first, second = (model.features(one)[:, model.before :] for one in (images(), other))
    torch.testing.assert_close(second, first[:, order])


@pytest.mark.parametrize("config", [SMALL, MEAN], ids=["class token", "mean"])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda one: one.kind)
def test_with_positions_the_order_of_patches_matters(config: ViTConfig, position: GridPositionConfig) -> None:
    model = built(replace(config, position=position))
    other, _ = shuffled(images(), 3)
    assert (model(other) - model(images())).abs().max() > 1e-3


@pytest.mark.parametrize("position", [*POSITIONS, NoGridConfig()], ids=lambda one: one.kind)
def test_images_of_another_resolution_are_read(position: GridPositionConfig) -> None:
    model = built(replace(SMALL, position=position))
    for rows, columns in ((24, 24), (6, 15), (3, 3)):
        assert model.features(images(rows, columns)).shape == (3, 1 + rows * columns // 9, 16)
        assert model(images(rows, columns)).isfinite().all()


def test_a_larger_image_of_the_same_content_is_classified_alike() -> None:
    """The places of patches at another resolution are those of the trained grid, not counted on from its edge."""
    model = built(replace(MEAN, position=GridSinusoidalConfig()))
    small, large = torch.ones(1, 2, 12, 12).double(), torch.ones(1, 2, 96, 96).double()
    far = built(replace(MEAN, image=96, position=GridSinusoidalConfig()))
    far.load_state_dict(model.state_dict())
    near, beyond = (float((one(large) - model(small)).detach().abs().max()) for one in (model, far))
    assert near < beyond / 5


def test_the_number_of_a_patch_is_a_position_of_a_text() -> None:
    raster = GridRasterConfig().build(width=8, head_width=4, grid=(3, 5))
    x = torch.zeros(1, 15, 8).double()
    want = Sinusoidal(8).embed(x, torch.arange(15)[None])
    torch.testing.assert_close(raster.embed(x, patches(3, 5).phase), want)


def test_the_class_token_has_biases_of_its_own() -> None:
    """Between patches the bias is that of their distance, whether there is a class token or not."""
    bare, model = (
        built(replace(MEAN, position=GridRelativeConfig())),
        built(replace(SMALL, position=GridRelativeConfig())),
    )
    for one, other in zip(bare.blocks.layers, model.blocks.layers, strict=True):
        few: Any = one.attention.mechanism.bias
        more: Any = other.attention.mechanism.bias
        assert few.outer_table is None
        assert more.outer_table.shape == (4, 3)
        assert few.table.shape == more.table.shape
    loss = model(images()).sum()
    loss.backward()
    first: Any = model.blocks.layers[0].attention.mechanism.bias
    assert (first.outer_table.grad != 0).all()


def test_pooling() -> None:
    model = built(SMALL)
    x = torch.randn(2, 17, 16).double()
    assert torch.equal(model.pooled(x), x[:, 0])
    mean = built(replace(SMALL, head=ClassesHeadConfig(10, pool="mean")))
    torch.testing.assert_close(mean.pooled(x), x[:, 1:].mean(1))
    bare = built(replace(SMALL, head=NoHeadConfig()))
    assert torch.equal(bare(images()), bare.features(images()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": 5}, "no whole number of patches of 5"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"class_token": False}, "set head.pool = mean"),
        ({"head": TokensHeadConfig()}, "the head of an image model is classes, pixels or none"),
        ({"position": GridRotaryConfig(), "width": 12, "heads": 2}, "multiple of 4"),
    ],
)
def test_impossible_parts_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SMALL, **change).build()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit-tiny", 5_717_416), ("vit-small", 22_050_664), ("vit-base", 86_567_656), ("vit-large", 304_326_632)],
)
def test_the_published_sizes(name: str, parameters: int) -> None:
    """Of the models with 1000 classes, as `timm` and `transformers` count them."""
    assert describe(PRESETS[name])["parameters"] == parameters
