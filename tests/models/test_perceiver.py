"""Laws of Perceivers: a set of parts, padding, arrays of any length and kind; and encoders without blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import WindowConfig
from regard.errors import UserError
from regard.models import PerceiverConfig, SignalConfig, ViTConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.patches import cut, joined
from regard.nn.signals import PatchesConfig
from regard.prove.reduced import randomize_weights

MEAN = ClassesHeadConfig(5, pool="mean")
IMAGES = ViTConfig(image=12, channels=2, patch=3, width=16, layers=0, heads=4, class_token=False)
SOUNDS = SignalConfig(points=24, channels=2, width=16, layers=1, heads=4, embed=PatchesConfig(size=2))
CONFIG = PerceiverConfig(encoder=IMAGES, width=16, layers=3, heads=4, latents=5, head=MEAN)


def build(config: PerceiverConfig):
    return randomize_weights(config.build()).double().eval()


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(16)), st.booleans())
@torch.no_grad()
def test_without_positions_an_array_is_a_set_of_parts(order: list[int], positions: bool) -> None:
    model = build(CONFIG if positions else CONFIG.without_positions())  # type: ignore[arg-type]
    images = torch.randn(2, 2, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shuffled = joined(cut(images, 3)[:, order], 4, 2)
    same = torch.allclose(model(images), model(shuffled), rtol=0, atol=1e-12)
    assert same is (not positions or order == sorted(order))


@pytest.mark.parametrize("layers", [0, 1])
@torch.no_grad()
def test_padding_changes_nothing(layers: int) -> None:
    model = build(replace(CONFIG, encoder=replace(SOUNDS, layers=layers)))
    generator = torch.Generator().manual_seed(1)
    signals = torch.randn(3, 24, 2, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([24, 9, 2])
    found = model(signals, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(signals[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(found[row : row + 1], alone, rtol=0, atol=1e-12)
    other = signals.clone()
    other[1, 9:] = 7
    assert torch.equal(model(other, lengths), found)


@torch.no_grad()
def test_the_output_has_one_size_for_arrays_of_any_length() -> None:
    model = build(CONFIG)
    shapes = [model.features(torch.zeros(1, 2, side, side, dtype=torch.float64)).shape for side in (3, 12, 24)]
    assert set(shapes) == {(1, 5, 16)}


@torch.no_grad()
def test_an_encoder_without_blocks_is_its_embedding() -> None:
    model = randomize_weights(replace(IMAGES, head=MEAN).build()).eval()
    images = torch.randn(2, 2, 12, 12)
    assert torch.equal(model.features(images), model.norm(model.embedded(images)[0]))


def test_impossible_parts_are_refused() -> None:
    for change, problem in (
        ({"reads_first": 4}, "cannot read"),
        ({"encoder": replace(IMAGES, class_token=True)}, "class_token = false"),
        ({"encoder": replace(IMAGES, width=32)}, "encoder.width"),
        ({"attention": WindowConfig(4)}, "no order"),
        ({"head": ClassesHeadConfig(5)}, "pool = mean"),
    ):
        with pytest.raises(UserError, match=problem):
            replace(CONFIG, **change).build()
