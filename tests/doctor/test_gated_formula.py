"""The doctor's formula of gated blocks: it holds for them, and not for one that leaves its gates out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.doctor.calls import difference, record_calls
from regard.doctor.checks.layer_formula import blocks, feedforward_kinds, layers, once
from regard.models import CaptionerConfig, ViTConfig
from regard.nn.blocks import block
from regard.prove.reduced import randomize_weights

IMAGES = ViTConfig(image=6, channels=2, patch=3, width=16, layers=1, heads=2, class_token=False)
CONFIG = CaptionerConfig(vocabulary=12, context=24, width=16, layers=2, heads=2, encoder=IMAGES)


def wrong() -> set[str]:
    """The parts of a captioner whose output is another one than that of their formula."""
    model = randomize_weights(CONFIG.make()).eval()
    tokens = torch.tensor([[CONFIG.image_mark, 1, 2, 3]])
    images = torch.randn(1, 1, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        calls = once(record_calls(model, lambda: model(tokens, images, torch.ones(1).long())))
        computed = [*layers(calls, feedforward_kinds(model)), *blocks(calls)]
    assert {one.where for one in computed} >= {"decoder.blocks.0", "encoder.blocks.0.feedforward"}
    return {one.where for one in computed if difference(one.got, one.want) > 1e-4}


def test_the_formula_of_a_captioner_holds() -> None:
    assert not wrong()


def test_gates_that_are_left_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def ungated(self: block.Gated, x: Tensor, context: block.AttentionContext) -> Tensor:
        assert self.cross is not None
        x = x + self.cross(self.norm_cross(x), context.cross)
        x = x + self.dense(self.norm_dense(x))
        x = x + self.attention(self.norm_attention(x), context)
        return x + self.feedforward(self.norm_feedforward(x))

    monkeypatch.setattr(block.Gated, "forward", ungated)
    assert any(where.startswith("decoder.blocks.0") for where in wrong())
