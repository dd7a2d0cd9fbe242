"""A tile by PyTorch's flash kernel for CUDA: one that is allowed as a whole, or a causal triangle, in 16 bits."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiled import DenseKernel, TileTensors
from regard.attention.call import Call

WIDEST = 256  # of a head, in the kernel
MULTIPLE = 8  # of which the kernel's head widths are


class FlashKernel(NamedTuple):
    """Other tiles, which lie along the edges of a mask and are small, are computed by the formulas."""

    call: Call
    learned: tuple[Tensor, ...] = ()

    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]:
        if tile.visible is not None:
            return DenseKernel(self.call).forward(tile, seed)
        given = (tile.q, tile.k, tile.v, 0.0, tile.tile.causal)
        values, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*given, scale=self._scale)
        return values, lse

    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        if tile.visible is not None:
            return DenseKernel(self.call).backward(tile, grad, out, lse, seed)
        random = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of a dropout that there is not
        offset = torch.zeros((), dtype=torch.uint64, device=grad.device)
        lengths = (None, None, tile.q.shape[2], tile.k.shape[2])
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(grad, tile.q, tile.k, tile.v, out, lse.contiguous()),
            *(*lengths, 0.0, tile.tile.causal, random, offset),
            scale=self._scale,
        )

    @property
    def _scale(self) -> float:
        return self.call.factor / self.call.temperature


def flash_runs(call: Call, q: Tensor) -> bool:
    """Whether the kernel can compute a call with queries ``q`` of the padded width."""
    fits = q.shape[-1] <= WIDEST and q.shape[-1] % MULTIPLE == 0
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and fits and call.bias is None and not call.dropout
