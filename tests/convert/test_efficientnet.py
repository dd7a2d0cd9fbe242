"""EfficientNet-Lite: folded convolutions equal those with batch normalization; two published towers in one model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.convert.folding import EPSILON, folded_efficientnet
from regard.convert.read import read_model
from regard.data.tokenizers import BpeConfig
from regard.errors import UserError
from regard.models import EfficientNetConfig, EncoderConfig, GPTConfig, TwoTowersConfig
from regard.models.efficientnet import STAGES, STEM
from regard.nn.heads import NoHeadConfig
from regard.train import pretrained as start
from regard.train.adapt import FrozenConfig
from regard.train.pretrained import Pretrained, load_weights

BLOCKS = [
    (kernel, stride if not n else 1, expansion, channels)
    for kernel, stride, expansion, channels, count in STAGES
    for n in range(count)
]


def published(seed: int = 1) -> dict[str, Tensor]:
    """Tensors with the names and shapes of the package, random ones."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}

    def layer(name: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        weight = torch.randn(outputs, inputs, kernel, kernel, generator=generator)
        found[f"{name}.weight"] = weight / (inputs * kernel * kernel) ** 0.5
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{norm}.{part}"] = torch.rand(outputs, generator=generator) + 0.5 * (part != "bias")

    layer("_conv_stem", "_bn0", STEM, 3, 3)
    before = STEM
    for number, (kernel, _, expansion, channels) in enumerate(BLOCKS):
        inner = before * expansion
        if expansion > 1:
            layer(f"_blocks.{number}._expand_conv", f"_blocks.{number}._bn0", inner, before, 1)
        layer(f"_blocks.{number}._depthwise_conv", f"_blocks.{number}._bn1", inner, 1, kernel)
        layer(f"_blocks.{number}._project_conv", f"_blocks.{number}._bn2", channels, inner, 1)
        before = channels
    found["_fc.weight"] = torch.zeros(3, 1280)
    return found


def normalized(x: Tensor, theirs: dict[str, Tensor], name: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
    """A convolution with "same" padding of an even image, then batch normalization in evaluation."""
    weight = theirs[f"{name}.weight"].double()
    total = weight.shape[-1] - stride if stride == 2 else weight.shape[-1] - 1
    x = F.conv2d(F.pad(x, (total // 2, total - total // 2) * 2), weight, stride=stride, groups=groups)
    mean, variance, gain, bias = (
        theirs[f"{norm}.{part}"].double() for part in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, variance, gain, bias, eps=EPSILON)


def last_map(images: Tensor, theirs: dict[str, Tensor]) -> Tensor:
    """What the package computes up to its last block."""
    x = F.relu6(normalized(images, theirs, "_conv_stem", "_bn0", stride=2))
    for number, (_, stride, expansion, _) in enumerate(BLOCKS):
        block, y = f"_blocks.{number}", x
        if expansion > 1:
            y = F.relu6(normalized(y, theirs, f"{block}._expand_conv", f"{block}._bn0"))
        y = F.relu6(normalized(y, theirs, f"{block}._depthwise_conv", f"{block}._bn1", stride, groups=y.shape[1]))
        y = normalized(y, theirs, f"{block}._project_conv", f"{block}._bn2")
        x = x + y if stride == 1 and x.shape == y.shape else y
    return x


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    buffer = io.BytesIO()
    torch.save(published(), buffer)
    path = tmp_path_factory.mktemp("models") / "efficientnet.tar"
    path.write_bytes(folded_efficientnet({"net.pth": buffer.getvalue()}))
    return path


def test_folding_keeps_what_the_network_computes(packed: Path) -> None:
    given = read_model(packed)
    assert given.config == EfficientNetConfig(head=NoHeadConfig())
    model: Any = given.config.build()
    model.load_state_dict(given.weights)
    model.double()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
    with torch.no_grad():
        x = F.relu6(model.embed(images))
        for block in model.blocks:
            x = block(x)
        want = last_map(images, published())
    torch.testing.assert_close(x, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))  # weights are float32


def test_features_of_all_levels_end_on_the_coarsest_grid(packed: Path) -> None:
    model = EfficientNetConfig(image=96, head=NoHeadConfig()).build()
    features = model(torch.randn(2, 3, 64, 128))
    assert features.shape == (2, 2 * 4, 40 + 112 + 320) == (2, 8, model.config.width)
    with pytest.raises(ValueError, match=r"set --data\.size 64 or 128"):
        EfficientNetConfig(image=100).check()


def towers(monkeypatch: pytest.MonkeyPatch, image: Pretrained, text: Pretrained) -> Pretrained:
    found = {"a": image, "b": text}
    whole = start.pretrained
    monkeypatch.setattr(start, "pretrained", found.__getitem__)
    return whole("a+b", TwoTowersConfig(width=12, scale=8.0))


def test_two_published_models_become_towers_with_new_maps(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = read_model(packed)
    encoder = EncoderConfig(vocabulary=9, context=8, layers=1, heads=2, width=16)
    tokenizer = BpeConfig(vocabulary=300).build(["a dog\n"])
    theirs = encoder.build().state_dict()
    given = towers(monkeypatch, Pretrained(image.config, image.weights, None), Pretrained(encoder, theirs, tokenizer))
    assert given.tokenizer is tokenizer
    model: Any = given.config.build()
    new = model.unembed_image.weight.clone()
    load_weights(model, given.weights, "a+b")
    assert torch.equal(model.unembed_image.weight, new)
    assert torch.equal(model.text.embed.weight, theirs["embed.weight"])
    assert torch.equal(model.image.embed.weight, image.weights["embed.weight"])
    FrozenConfig(trained=("unembed_image", "log_scale", "image.blocks.15"), head=5.0).apply(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {"unembed_image.weight", "log_scale"} < trained
    assert all(name.startswith(("unembed_image", "log_scale", "image.blocks.15.")) for name in trained)
    rates = FrozenConfig(head=5.0).rates(model)
    assert rates.keys() == {model.unembed_image.weight, model.unembed_text.weight, model.log_scale}


def test_a_language_model_is_no_tower(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = read_model(packed)
    language = GPTConfig(vocabulary=9, context=8, layers=1, heads=2, width=16)
    with pytest.raises(UserError, match="b is no encoder"):
        towers(monkeypatch, Pretrained(image.config, image.weights, None), Pretrained(language, {}, None))
