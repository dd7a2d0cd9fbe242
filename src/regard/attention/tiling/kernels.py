"""Attention over the tiles of a layout, with a backward pass that keeps no score.

Each tile gives its values and their log-sum-exp; tiles of the same queries are merged by it. What makes the backward
pass simple is that with the *joint* output O and log-sum-exp L of a row, P = exp(S - L) is the joint softmax and
dS = P (dP - rowsum(dO O)) holds within each tile by itself (Dao et al. 2022, appendix B.4). So a fused kernel's own
backward pass, given the joint two, is right for every tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.call import Call
from regard.attention.slots import Pairs
from regard.attention.tiling.tile import Tile, length
from regard.attention.weigh import repeat_kv, score

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FusedKernel(NamedTuple):
    """A tile by PyTorch's flash kernel for CPUs; a bias without gradients is added as a float mask."""

    call: Call

    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]:
        k, v = tile.repeated()
        return FORWARD(tile.q, k, v, attn_mask=self._offset(tile), scale=self._scale)

    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        k, v = tile.repeated()
        offset = self._offset(tile)
        for_q, *rest = BACKWARD(grad, tile.q, k, v, out, lse, 0.0, False, attn_mask=offset, scale=self._scale)
        return for_q, *(tile.summed(x) for x in rest)

    @property
    def _scale(self) -> float:
        return self.call.factor / self.call.temperature

    def _offset(self, tile: TileTensors) -> Tensor | None:
        return tile.offset if self.call.bias is None else additive_mask(self.call, tile)


class DenseKernel(NamedTuple):
    """A tile by the formulas: any bias, with gradients, and dropout. One tile's scores are held at a time."""

    call: Call
    learned: tuple[Tensor, ...] = ()

    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]:
        scores = self._scores(tile, tile.q, tile.k)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None].masked_fill(lse[..., None] == float("-inf"), 0)).exp()
        return self._dropped(weights, seed).to(tile.v.dtype) @ repeat_kv(tile.v, tile.q.shape[1]), lse

    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        q, k = tile.q.detach().requires_grad_(), tile.k.detach().requires_grad_()
        with torch.enable_grad():
            scores = self._scores(tile, q, k)
        weights = (scores.detach() - lse[..., None]).exp()
        dropped = self._dropped(weights, seed)
        for_v = dropped.to(grad.dtype).mT @ grad
        for_weights = (grad @ repeat_kv(tile.v, tile.q.shape[1]).mT).to(weights.dtype)
        for_scores = dropped * for_weights - weights * (grad * out).sum(-1, keepdim=True)
        for_q, for_k, *rest = torch.autograd.grad(
            scores, (q, k, *self.learned), for_scores, allow_unused=True, materialize_grads=True
        )
        return for_q, for_k, tile.summed(for_v), *rest

    def _scores(self, tile: TileTensors, q: Tensor, k: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = score(self.call, q, k, tile.pairs(self.call), wide) / self.call.temperature
        return scores if tile.visible is None else scores.masked_fill(~tile.visible, float("-inf"))

    def _dropped(self, weights: Tensor, seed: int) -> Tensor:
        """The weights after dropout; the backward pass draws the same numbers from the same seed."""
        drop = self.call.dropout
        if not drop:
            return weights
        if torch.compiler.is_compiling():  # a compiler keeps the draw itself
            return F.dropout(weights, drop)
        draw = torch.Generator(weights.device).manual_seed(seed)
        return weights * (torch.rand(weights.shape, device=weights.device, generator=draw) >= drop) / (1 - drop)


class TileTensors(NamedTuple):
    """The tensors of one tile."""

    tile: Tile
    q: Tensor  # [B, H, q, D]
    k: Tensor  # [B, G, k, D]
    v: Tensor
    visible: Tensor | None  # [B|1, 1, q, k]; None: every pair
    offset: Tensor | None  # the same as a float mask

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Keys and values for every query head."""
        return repeat_kv(self.k, self.q.shape[1]), repeat_kv(self.v, self.q.shape[1])

    def summed(self, x: Tensor) -> Tensor:
        """Gradients of repeated keys or values [B, H, k, D] as those of the key/value heads [B, G, k, D]."""
        return x if x.shape[1] == self.k.shape[1] else x.unflatten(1, (self.k.shape[1], -1)).sum(2)

    def pairs(self, call: Call) -> Pairs:
        return self.tile.pairs(call.plan, heads=self.q.shape[1], batch=call.plan.rows, device=self.q.device)


def additive_mask(call: Call, tile: TileTensors, visible: Tensor | None = None) -> Tensor:
    """The bias of a tile as a float mask [B|1, H, q, k], -inf at pairs that are not ``visible``."""
    assert call.bias is not None
    zero = tile.q.new_zeros(call.plan.rows, *tile.q.shape[1:3], tile.k.shape[2])
    added = call.bias.adjust(zero, tile.pairs(call)) / call.temperature
    visible = tile.visible if visible is None else visible
    return added if visible is None else added.masked_fill(~visible, float("-inf"))


class TiledWork(NamedTuple):
    """The arguments of ``Tiled`` that are no tensors."""

    kernel: FusedKernel | DenseKernel
    tiles: tuple[Tile, ...]
    seed: int

    def each(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[TileTensors]:
        """The tensors of each tile, one tile at a time."""
        call, offsets = self.kernel.call, dict[int, Tensor]()
        for tile in self.tiles:
            visible = None if tile.whole else tile.allowed(call.plan, q.device)
            offset = None
            if visible is not None and isinstance(self.kernel, FusedKernel) and call.bias is None:
                offset = offsets.get(id(visible)) if tile.visible is not None else None
                if offset is None:
                    offset = q.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
                if tile.visible is not None:
                    offsets = {id(visible): offset}  # neighbors share one; all of them would take more than scores
            yield TileTensors(tile, q[:, :, tile.rows], tile.keys(k), tile.keys(v), visible, offset)


class Tiled(Function):
    @staticmethod
    def forward(ctx: Any, work: TiledWork, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=exact, device=q.device)
        lse = torch.full(q.shape[:3], float("-inf"), dtype=exact, device=q.device)
        for i, tile in enumerate(work.each(q, k, v)):
            values, total = work.kernel.forward(tile, work.seed + i)
            if tile.visible is not None:
                total = total.masked_fill(~tile.visible.any(-1), float("-inf"))
            rows = tile.tile.rows
            before = lse[:, :, rows]
            both = torch.logaddexp(before, total)
            safe = both.masked_fill(both == float("-inf"), 0)
            old, new = (before - safe).exp()[..., None], (total - safe).exp()[..., None]
            out[:, :, rows] = out[:, :, rows] * old + values * new
            lse[:, :, rows] = both
        out = out.to(q.dtype)
        lse = lse.masked_fill_(lse == float("-inf"), 0)  # of rows that see nothing every P is exp(-inf - 0)
        ctx.work = work
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        work: TiledWork = ctx.work
        into = [torch.zeros_like(x) for x in (q, k, v)]
        learned = work.kernel.learned if isinstance(work.kernel, DenseKernel) else ()
        into_learned = [torch.zeros_like(x) for x in learned]
        for i, tile in enumerate(work.each(q, k, v)):
            rows = tile.tile.rows
            given = (grad[:, :, rows], out[:, :, rows], lse[:, :, rows])
            for_q, for_k, for_v, *rest = work.kernel.backward(tile, *given, work.seed + i)
            into[0][:, :, rows] += for_q
            for total, part in zip(into[1:], (for_k, for_v), strict=True):
                start = 0
                for piece in tile.tile.columns:
                    stop = start + length(piece)
                    total[:, :, piece] += part[:, :, start:stop]
                    start = stop
            for total, part in zip(into_learned, rest, strict=True):
                total += part
        return None, *into, *into_learned
