"""Attention over the tiles of a layout, with a backward pass that keeps no score.

Each tile gives its values and their log-sum-exp; tiles of the same queries are merged by it. What makes the backward
pass simple is that with the *joint* output O and log-sum-exp L of a row, P = exp(S - L) is the joint softmax and
dS = P (dP - rowsum(dO O)) holds within each tile by itself (Dao et al. 2022, appendix B.4). So a fused kernel's own
backward pass, given the joint two, is right for every tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.call import Call
from regard.attention.slots import Pairs, make_pairs
from regard.attention.tiling.bands import Band

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Fused(NamedTuple):
    """A tile through PyTorch's flash kernel for CPUs; a bias without gradients goes along as a float mask."""

    call: Call

    def forward(self, tile: Tile, seed: int) -> tuple[Tensor, Tensor]:
        return FORWARD(tile.q, tile.wide(tile.k), tile.wide(tile.v), attn_mask=self._offset(tile), scale=self._scale)

    def backward(self, tile: Tile, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        k, v, offset = tile.wide(tile.k), tile.wide(tile.v), self._offset(tile)
        for_q, *rest = BACKWARD(grad, tile.q, k, v, out, lse, 0.0, False, attn_mask=offset, scale=self._scale)
        if tile.shared > 1:
            rest = [x.unflatten(1, (-1, tile.shared)).sum(2) for x in rest]
        return for_q, *rest

    @property
    def _scale(self) -> float:
        return self.call.factor / self.call.temperature

    def _offset(self, tile: Tile) -> Tensor | None:
        if self.call.bias is None:
            return tile.offset
        zero = tile.q.new_zeros(self.call.plan.rows, *tile.q.shape[1:3], tile.k.shape[2])
        added = self.call.bias.adjust(zero, tile.pairs(self.call)) / self.call.temperature
        return added if tile.seen is None else added.masked_fill(~tile.seen, float("-inf"))


class Plain(NamedTuple):
    """A tile by the formulas: any bias, with gradients, and dropout. Scores live for one tile at a time."""

    call: Call
    learned: tuple[Tensor, ...] = ()

    def forward(self, tile: Tile, seed: int) -> tuple[Tensor, Tensor]:
        scores = self._scores(tile, tile.q, tile.k)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None].masked_fill(lse[..., None] == float("-inf"), 0)).exp()
        return self._kept(weights, seed).to(tile.v.dtype) @ tile.wide(tile.v), lse

    def backward(self, tile: Tile, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        q, k = tile.q.detach().requires_grad_(), tile.k.detach().requires_grad_()
        with torch.enable_grad():
            scores = self._scores(tile, q, k)
        weights = (scores.detach() - lse[..., None]).exp()
        kept = self._kept(weights, seed)
        for_v = kept.to(grad.dtype).mT @ grad
        along = (grad @ tile.wide(tile.v).mT).to(weights.dtype)
        for_scores = kept * along - weights * (grad * out).sum(-1, keepdim=True)
        for_q, for_k, *rest = torch.autograd.grad(
            scores, (q, k, *self.learned), for_scores, allow_unused=True, materialize_grads=True
        )
        return for_q, for_k, for_v.unflatten(1, (-1, tile.shared)).sum(2), *rest

    def _scores(self, tile: Tile, q: Tensor, k: Tensor) -> Tensor:
        scores = (q @ tile.wide(k).mT).to(torch.promote_types(q.dtype, torch.float32)) * self.call.factor
        if self.call.bias is not None:
            scores = self.call.bias.adjust(scores, tile.pairs(self.call))
        scores = scores / self.call.temperature
        return scores if tile.seen is None else scores.masked_fill(~tile.seen, float("-inf"))

    def _kept(self, weights: Tensor, seed: int) -> Tensor:
        """The weights after dropout, which the backward pass draws again from the same seed."""
        drop = self.call.dropout
        if not drop:
            return weights
        if torch.compiler.is_compiling():  # a compiler keeps the draw itself
            return F.dropout(weights, drop)
        draw = torch.Generator(weights.device).manual_seed(seed)
        return weights * (torch.rand(weights.shape, device=weights.device, generator=draw) >= drop) / (1 - drop)


class Tile(NamedTuple):
    """The tensors of one band, cut out."""

    band: Band
    q: Tensor  # [B, H, q, D]
    k: Tensor  # [B, G, k, D]
    v: Tensor
    seen: Tensor | None  # [B|1, 1, q, k]; None: every pair
    offset: Tensor | None  # the same as numbers to add

    @property
    def shared(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    def wide(self, x: Tensor) -> Tensor:
        """Keys or values for every query head."""
        return x.repeat_interleave(self.shared, dim=1) if self.shared > 1 else x

    def pairs(self, call: Call) -> Pairs:
        plan, heads = call.plan, self.q.shape[1]
        tile = {"rows": self.band.rows, "columns": self.band.columns}
        return make_pairs(plan.queries, plan.keys, heads=heads, device=self.q.device, batch=plan.rows, **tile)


class Work(NamedTuple):
    """What the autograd function does, beside its tensors."""

    call: Call
    kernel: Fused | Plain
    bands: tuple[Band, ...]
    seed: int

    def tiles(self, q: Tensor, k: Tensor, v: Tensor):
        """Each band's tensors, one band at a time."""
        offsets: dict[int, Tensor] = {}
        for band in self.bands:
            seen = None if band.whole else band.look(self.call.plan, q.device)
            offset = None
            if seen is not None and isinstance(self.kernel, Fused) and self.call.bias is None:
                offset = offsets.get(id(seen)) if band.seen is not None else None
                if offset is None:
                    offset = q.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))
                if band.seen is not None:
                    offsets = {id(seen): offset}  # neighbours share one; to hold them all would take more than scores
            yield Tile(band, q[:, :, band.rows], cut(k, band), cut(v, band), seen, offset)


def cut(x: Tensor, band: Band) -> Tensor:
    pieces = [x[:, :, piece] for piece in band.columns]
    return torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]


class Tiled(Function):
    @staticmethod
    def forward(ctx: Any, work: Work, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=exact, device=q.device)
        lse = torch.full(q.shape[:3], float("-inf"), dtype=exact, device=q.device)
        for i, tile in enumerate(work.tiles(q, k, v)):
            values, total = work.kernel.forward(tile, work.seed + i)
            if tile.seen is not None:
                total = total.masked_fill(~tile.seen.any(-1), float("-inf"))
            rows = tile.band.rows
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
        work: Work = ctx.work
        into = [torch.zeros_like(x) for x in (q, k, v)]
        learned = work.kernel.learned if isinstance(work.kernel, Plain) else ()
        into_learned = [torch.zeros_like(x) for x in learned]
        for i, tile in enumerate(work.tiles(q, k, v)):
            rows = tile.band.rows
            given = (grad[:, :, rows], out[:, :, rows], lse[:, :, rows])
            for_q, for_k, for_v, *rest = work.kernel.backward(tile, *given, work.seed + i)
            into[0][:, :, rows] += for_q
            for total, part in zip(into[1:], (for_k, for_v), strict=True):
                start = 0
                for piece in tile.band.columns:
                    stop = start + len(range(piece.start, piece.stop, piece.step))
                    total[:, :, piece] += part[:, :, start:stop]
                    start = stop
            for total, part in zip(into_learned, rest, strict=True):
                total += part
        return None, *into, *into_learned
