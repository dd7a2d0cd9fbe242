"""Tiles of attention, merged by their log-sum-exp; the kernels of one tile.

The backward pass keeps no score. Each tile gives its values and their log-sum-exp; tiles of the same queries are merged
by it. What makes the backward pass simple is that with the *joint* output O and log-sum-exp L of a row, P = exp(S - L)
is the joint softmax and dS = P (dP - rowsum(dO O)) holds within each tile by itself (Dao et al. 2022, appendix B.4). So
a fused kernel's own backward pass, given the joint two, is right for every tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.call import Call, SavedTensors, repeat_kv, score
from regard.attention.slots import Pairs
from regard.attention.tiling.tile import Tile, length


def kernel_for(call: Call, q: Tensor) -> tuple[FusedKernel | DenseKernel, Tensor]:
    """The kernel for tiles of a call, and the queries to give it."""
    learned = () if call.bias is None else tuple(call.bias.learned())
    additive = call.bias is None or call.bias.additive
    if q.device.type != "cpu" or not additive or learned or call.dropout:
        return DenseKernel(without_tensors(call), learned), q
    call, q = positive_scale(call, q)
    return FusedKernel(without_tensors(call)), q


def positive_scale(call: Call, q: Tensor) -> tuple[Call, Tensor]:
    """The call with a scale above zero: fused kernels bound a row by its greatest product, before they scale."""
    scale = call.factor / call.temperature
    return (call, q) if scale > 0 else (call._replace(scale=call.temperature), q * scale)


def draw_seed(call: Call) -> int:
    """The seed of the call's dropout; 0 without it, which draws nothing."""
    return int(torch.randint(2**62, ())) if call.dropout else 0


def without_tensors(call: Call) -> Call:
    """The call without its tensors, which autograd keeps, and with the scale of the unpadded width."""
    none = call.q.new_empty(0)
    return call._replace(q=none, k=none, v=none, scale=call.factor)


FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FusedKernel(NamedTuple):
    """A tile by PyTorch's flash kernel for CPUs; a bias without gradients is added as a float mask."""

    call: Call
    learned: tuple[Tensor, ...] = ()

    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]:
        k, v = tile.repeated()
        options = {"attn_mask": self._offset(tile), "scale": self.call.factor / self.call.temperature}
        return FORWARD(tile.q, k, v, 0.0, tile.tile.causal, **options)

    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        k, v = tile.repeated()
        options = {"attn_mask": self._offset(tile), "scale": self.call.factor / self.call.temperature}
        for_q, *rest = BACKWARD(grad, tile.q, k, v, out, lse, 0.0, tile.tile.causal, **options)
        return for_q, *(tile.summed(x) for x in rest)

    def _offset(self, tile: TileTensors) -> Tensor | None:
        return tile.offset if self.call.bias is None else additive_mask(self.call, tile)


class DenseKernel(NamedTuple):
    """A tile by the formulas: any bias, with gradients, and dropout. One tile's scores are held at a time."""

    call: Call
    learned: tuple[Tensor, ...] = ()  # parameters of the bias

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
    visible: Tensor | None  # [B|1, 1|H, q, k]; None: every pair
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

    kernel: Kernel
    tiles: tuple[Tile, ...]
    seed: int

    def each(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[TileTensors]:
        """The tensors of each tile, one tile at a time."""
        call, latest, offset = self.kernel.call, None, None
        as_offset = isinstance(self.kernel, FusedKernel) and call.bias is None
        for tile in self.tiles:
            visible = None if tile.whole or tile.causal else tile.allowed(call.plan, q.device)
            if as_offset and visible is not latest:  # neighbors share one; all of them would take more than scores
                offset = None if visible is None else q.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
                latest = visible
            yield TileTensors(tile, q[:, :, tile.rows], tile.keys(k), tile.keys(v), visible, offset)

    def add_values(self, q: Tensor, k: Tensor, v: Tensor, mixed: Mixed) -> None:
        """Merge the values over these keys into those over others."""
        out, lse = mixed
        for i, tile in enumerate(self.each(q, k, v)):
            values, total = self.kernel.forward(tile, self.seed + i)
            if tile.visible is not None:
                total = total.masked_fill(~tile.visible.any(-1), float("-inf"))
            rows = tile.tile.rows
            before = lse[:, :, rows]
            both = torch.logaddexp(before, total)
            safe = both.masked_fill(both == float("-inf"), 0)
            old, new = (before - safe).exp()[..., None], (total - safe).exp()[..., None]
            out[:, :, rows] = out[:, :, rows] * old + values * new
            lse[:, :, rows] = both

    def add_gradients(
        self, q: Tensor, k: Tensor, v: Tensor, mixed: Mixed, grad: Tensor, into: Sequence[Tensor]
    ) -> None:
        """Add the gradients of q, k, v and what is learned to ``into``, given those of the joint values."""
        (out, lse), (into_q, into_k, into_v, *into_learned) = mixed, into
        for i, tile in enumerate(self.each(q, k, v)):
            rows = tile.tile.rows
            given = (grad[:, :, rows], out[:, :, rows], lse[:, :, rows])
            for_q, for_k, for_v, *rest = self.kernel.backward(tile, *given, self.seed + i)
            into_q[:, :, rows] += for_q
            columns = tile.tile.columns
            for total, part in ((into_k, for_k), (into_v, for_v)):
                for piece, summand in zip(columns, part.split([length(c) for c in columns], dim=2), strict=True):
                    total[:, :, piece] += summand
            for total, part in zip(into_learned, rest, strict=True):
                total += part


class Kernel(Protocol):
    """The values and log-sum-exp of a tile, and its gradients given those of the joint softmax."""

    @property
    def call(self) -> Call: ...
    @property
    def learned(self) -> tuple[Tensor, ...]: ...
    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]: ...
    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]: ...
    def _replace(self, *, call: Call) -> Self: ...


class Mixed(NamedTuple):
    """The values and the log-sum-exp of the keys so far, in float32 at least."""

    out: Tensor  # [B, H, Q, E]
    lse: Tensor  # [B, H, Q]

    @classmethod
    def empty(cls, q: Tensor, v: Tensor) -> Self:
        """Of no keys."""
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=exact, device=q.device)
        return cls(out, torch.full(q.shape[:3], float("-inf"), dtype=exact, device=q.device))

    def finished(self, dtype: torch.dtype) -> Self:
        """Of all keys. The log-sum-exp of rows that see nothing is 0: every P of theirs is exp(-inf - 0)."""
        return self._replace(out=self.out.to(dtype), lse=self.lse.masked_fill_(self.lse == float("-inf"), 0))


def zeros(*tensors: Tensor) -> list[Tensor]:
    """Sums of gradients, in float32 at least: many tiles add to them."""
    return [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in tensors]


class TiledContext(SavedTensors):
    work: TiledWork


class Tiled(Function):
    @staticmethod
    def forward(ctx: TiledContext, work: TiledWork, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        mixed = Mixed.empty(q, v)
        work.add_values(q, k, v, mixed)
        mixed = mixed.finished(q.dtype)
        ctx.work = work
        ctx.save_for_backward(q, k, v, *mixed)
        return mixed.out

    @staticmethod
    @once_differentiable
    def backward(ctx: TiledContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *mixed = ctx.saved_tensors
        given = (q, k, v, *ctx.work.kernel.learned)
        into = zeros(*given)
        ctx.work.add_gradients(q, k, v, Mixed(*mixed), grad, into)
        return None, *(total.to(x.dtype) for total, x in zip(into, given, strict=True))
