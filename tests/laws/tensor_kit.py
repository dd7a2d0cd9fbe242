"""Models cut by tensor parallelism, and whole tensors from what their ranks hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from model_kit import MODELS, SIZES
from torch import Tensor, nn

from regard.attention import WindowConfig
from regard.models import GPTConfig, ModelConfig, TransformerConfig
from regard.nn.attention import SeparateConfig
from regard.nn.feedforward import GELUConfig, SwiGLUConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import AlibiConfig, LearnedPositionConfig, RelativeConfig, T5Config
from regard.parallel.layout import Layout
from regard.parallel.pieces import Cut, pieces
from regard.parallel.tensor import apply
from regard.parallel.world import World

#: All models, and more of the parts that tensor parallelism cuts.
CASES: dict[str, ModelConfig] = MODELS | {
    "tensor gpt": GPTConfig(**SIZES, heads=4, kv_heads=2, zero_init=False, feedforward=SwiGLUConfig()),
    "tensor gpt-2": GPTConfig(
        **SIZES, heads=4, zero_init=False, bias=True, qk_norm=False,
        position=LearnedPositionConfig(), norm=LayerNormConfig(), feedforward=GELUConfig(),
    ),
    "tensor alibi": GPTConfig(**SIZES, heads=4, zero_init=False, position=AlibiConfig()),
    "tensor norms": GPTConfig(
        **SIZES, heads=4, kv_heads=2, zero_init=False, bias=True, repeat=2, projection=SeparateConfig(norms="separate"),
    ),
    "tensor t5": TransformerConfig(
        **SIZES, heads=4, dropout=0.0, bias=True, position=T5Config(8, 16), feedforward=SwiGLUConfig(),
    ),
    "tensor dropout": GPTConfig(**SIZES, heads=4, zero_init=False, dropout=0.2, attention_dropout=0.0),
    "tensor window": GPTConfig(
        **SIZES, heads=4, zero_init=False, backend="banded", position=RelativeConfig(4), attention=WindowConfig(5),
    ),
}  # fmt: skip


class OneLayer(nn.Module):
    """As much of a model as ``apply`` needs, around one layer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.cuts: dict[str, Any] = {}


def in_layout(whole: nn.Module, rank: int, ranks: int) -> Any:
    """The model of one of several tensor-parallel ranks. There is no process group: nothing is summed."""
    model: Any = deepcopy(whole)
    apply(model, World(rank, ranks, rank, layout=Layout(tensor=ranks).of(ranks)))
    return model


def reassembled(
    ranks: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Cut]]], add: Collection[str] = ()
) -> dict[str, Tensor]:
    """The whole tensors from those of all ranks with their cuts, each slice from one of them.

    Those that are not cut are the first rank's, or the sum for the names in ``add``.
    """
    found: dict[str, Tensor] = {}
    for tensors, cuts in ranks:
        for name, tensor in tensors.items():
            if name not in cuts:
                found[name] = found[name] + tensor if name in found and name in add else found.get(name, tensor)
                continue
            whole = found.setdefault(name, torch.full(cuts[name].shape, torch.nan, dtype=tensor.dtype))
            for piece in pieces(tensor, cuts[name]):
                assert whole[piece.in_whole()].isnan().all(), f"{name}: two ranks hold the same slice"
                whole[piece.in_whole()] = tensor.detach()[piece.in_local()]
    return found
