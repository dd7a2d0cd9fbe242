"""Faults of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from held_out.parts import MODELS, HeldOut, changed_model, gpt, trained_with
from regard.attention import Causal, Full, Mask
from regard.models import GPT
from regard.nn.blocks.block import NoResidualConfig, PreNorm
from regard.nn.feedforward import ReLUConfig
from regard.nn.linear import Linear
from regard.nn.norm import NoNormConfig
from regard.nn.positions.position import LearnedPositionConfig


class CutBlock(PreNorm):
    """A detach was left in before the block."""

    def forward(self, x: Tensor, context: Any) -> Tensor:
        return super().forward(x.detach(), context)


class AlwaysDrops(nn.Module):
    """`training` of F.dropout is True by default."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.4)


class FirstHeadCut(Linear):
    """A mask of an experiment with pruning was left in."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.ones(x.shape[-1])
        kept[:16] = 0
        return super().forward(x * kept)


@dataclass(frozen=True)
class Late(Mask):
    """One token too far."""

    def allows(self, pairs: Any) -> Any:
        return pairs.q.order + 1 >= pairs.k.order


class LateInTraining(GPT):
    """A query sees its target, in training only."""

    def features(self, tokens: Tensor, slots: Any = None) -> Tensor:
        self.masks = [Late()] if self.training else [Causal() & Full()]
        return super().features(tokens, slots)


def detach(model: GPT) -> None:
    model.blocks[1].__class__ = CutBlock


def always_drops(model: Any) -> None:
    model.drop = AlwaysDrops()


def cut_head(model: Any) -> None:
    model.blocks[0].attention.out.__class__ = FirstHeadCut


def late_mask(model: GPT) -> None:
    model.__class__ = LateInTraining


def zero_phase(model: Any) -> None:
    """Every token gets position 0."""

    class SamePosition(type(model.position)):  # type: ignore[misc]
        def embed(self, x: Tensor, phase: Tensor) -> Tensor:
            return super().embed(x, torch.zeros_like(phase))

    model.position.__class__ = SamePosition


@torch.no_grad()
def large_weights(model: GPT) -> None:
    for block in model.blocks:
        for parameter in block.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)


def torch_defaults(model: Any) -> None:
    nn.init.normal_(model.embed.weight)
    nn.init.ones_(model.norm.gain)


@torch.no_grad()
def never_active(model: Any) -> None:
    model.blocks[-1].feedforward.up.bias.fill_(-30.0)


MODELS |= {
    one.__name__: one
    for one in (detach, always_drops, cut_head, late_mask, zero_phase, large_weights, torch_defaults, never_active)
}
NO_NORM: dict[str, Any] = {"layers": 6, "norm": NoNormConfig(), "qk_norm": False, "feedforward": ReLUConfig()}
RELU: dict[str, Any] = {"bias": True, "feedforward": ReLUConfig(), "zero_init": False}
FAULTS = {
    "detached block": HeldOut("vanishing_gradients", r"blocks\.0", changed_model("detach", zero_init=False)),
    "dropout in evaluation": HeldOut("random_numbers", "drop", changed_model("always_drops")),
    "dead head": HeldOut("no_effect", r"blocks\.0\.attention.*head 0", changed_model("cut_head", zero_init=False)),
    "positions ignored": HeldOut(
        "position_fault", "position", changed_model("zero_phase", position=LearnedPositionConfig())
    ),
    "no residual": HeldOut(
        "vanishing_gradients", r"blocks\.0 to", trained_with(gpt(layers=8, block=NoResidualConfig(), zero_init=False))
    ),
    "no norm": HeldOut("initial_loss", r"blocks\.\d", changed_model("large_weights", **NO_NORM)),
    "wrong initial scale": HeldOut("initial_loss", "head", changed_model("torch_defaults")),
    "late mask in training": HeldOut("mask_fault", r"blocks\.0\.attention", changed_model("late_mask")),
    "dead ReLU": HeldOut("dead_units", r"blocks\.1\.feedforward", changed_model("never_active", **RELU)),
}
