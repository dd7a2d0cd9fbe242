"""Laws of one stream: without a text it is a Vision Transformer; padding; both sides see each other."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from regard.errors import UserError
from regard.models import OneStreamConfig, ViT, ViTConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.positions.grid import GridRotaryConfig
from regard.prove.reduced import randomize_weights

CONFIG = OneStreamConfig(vocabulary=9, tokens=6, image=6, channels=2, patch=3, width=16, layers=2, heads=2)


def batch() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 2, 6, 6, dtype=torch.float64, generator=generator)
    return images, torch.randint(9, (3, 6), generator=generator), torch.tensor([6, 3, 1])


@pytest.mark.parametrize("head", [ClassesHeadConfig(2), ClassesHeadConfig(2, pool="mean")])
@torch.no_grad()
def test_without_a_text_it_is_a_vision_transformer(head: ClassesHeadConfig) -> None:
    config = replace(CONFIG, head=head)
    model, (images, tokens, lengths) = randomize_weights(config.build()).double().eval(), batch()
    plain = ViT(ViTConfig(**{field.name: getattr(config, field.name) for field in fields(ViTConfig)})).double().eval()
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if name in plain.state_dict()})
    want = plain(images)
    assert torch.equal(model(images), want)
    torch.testing.assert_close(model(images, tokens, torch.zeros_like(lengths)), want, rtol=0, atol=1e-12)
    assert not torch.allclose(model(images, tokens, lengths), want, rtol=0, atol=1e-3)


@torch.no_grad()
def test_padding_changes_nothing_and_both_sides_see_each_other() -> None:
    model, (images, tokens, lengths) = randomize_weights(CONFIG.build()).double().eval(), batch()
    found = model(images, tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = model(images[one], tokens[one, :length], lengths[one])
        torch.testing.assert_close(found[one], alone, rtol=0, atol=1e-12)
    features = model.features(images, tokens, lengths)
    other = model.features(images, (tokens + 1) % 9, lengths)
    brighter = model.features(images + 1, tokens, lengths)
    assert bool((features[:, :5] != other[:, :5]).any(-1).all())  # the class token and each patch
    assert bool((features[:, 5] != brighter[:, 5]).any(-1).all())  # the first token


def test_positions_that_compare_places_are_refused() -> None:
    with pytest.raises(UserError, match="position"):
        replace(CONFIG, position=GridRotaryConfig()).build()
