"""The banded backend: exact attention in blocks of queries, each with only the keys its mask can reach.

Cost and memory are O(N·w) for a mask that lets a query see w keys, in both directions of the computation, on any
device, wherever those keys are: a window, sinks, global tokens, blocks, documents, or every n-th key, for which
tokens are regrouped (tiling/regroup.py). Masks without such structure work too, without an N×N tensor.

The backward pass keeps no score. Each tile gives its values and their log-sum-exp; tiles of the same queries are merged
by it. What makes the backward pass simple is that with the *joint* output O and log-sum-exp L of a row, P = exp(S - L)
is the joint softmax and dS = P (dP - rowsum(dO O)) holds within each tile by itself (Dao et al. 2022, appendix B.4). So
a fused kernel's own backward pass, given the joint two, is right for every tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.backends.sdpa import even_widths, fused, not_plain_softmax
from regard.attention.call import Backend, Call, Out, Plan, SavedTensors, repeat_kv, score
from regard.attention.slots import Pairs
from regard.attention.tiling.regroup import merged
from regard.attention.tiling.tile import Tile, consecutive, length, make_tiles


class Banded(Backend):
    """Tiles of scores, each through a fused kernel where it can, merged by their log-sum-exp."""

    name = "banded"

    def refuses(self, call: Call) -> list[str]:
        reasons = not_plain_softmax(call, takes_bias=True)
        if not consecutive(call.plan):
            reasons.append("the slots' order is known only to the device, so no key range can be cut")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> tuple[tuple[Tile, ...], ...]:
        return make_tiles(plan, device)

    def run(self, call: Call) -> Out:
        q, k, v, width = even_widths(*in_one_type(call.q, call.k, call.v))
        if torch.compiler.is_compiling():
            return Out(traced(call, q, k, v)[..., :width])
        learned = () if call.bias is None else tuple(call.bias.learned())
        additive = call.bias is None or call.bias.additive
        if q.device.type == "cpu" and additive and not learned and not call.dropout:
            scale = call.factor / call.temperature
            if scale <= 0:  # the kernel bounds a row by its greatest product, before it scales
                q, call = q * scale, call._replace(scale=call.temperature)
            kernel: FusedKernel | DenseKernel = FusedKernel(without_tensors(call))
        else:
            kernel = DenseKernel(without_tensors(call), learned)
        tiles = tuple(tile for part in call.plan.prepared for tile in part)
        seed = int(torch.randint(2**62, ())) if call.dropout else 0
        with torch.autocast(q.device.type, enabled=False):
            values = Tiled.apply(TiledWork(kernel, tiles, seed), q, k, v, *learned)
        return Out(values[..., :width] if width != values.shape[-1] else values)


def in_one_type(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, the dtype that it would choose: the kernels here are called without it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) if x.dtype != torch.float64 else x for x in tensors)


def without_tensors(call: Call) -> Call:
    """The call without its tensors, which autograd keeps, and with the scale of the unpadded width."""
    none = call.q.new_empty(0)
    return call._replace(q=none, k=none, v=none, scale=call.factor)


def traced(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for a compiler, which derives the backward pass itself.

    Keys are gathered once for all tiles: the backward of one slice per tile would read all of k for every tile.
    """
    parts: tuple[tuple[Tile, ...], ...] = call.plan.prepared
    alone = len(parts) == 1 and (call.bias is None or call.bias.additive)
    results = []
    for tiles in parts:
        rows = [indices(tile.rows, q.device) for tile in tiles]
        columns = [torch.cat([indices(piece, q.device) for piece in tile.columns]) for tile in tiles]
        qs = q.index_select(2, torch.cat(rows)).split([len(index) for index in rows], dim=2)
        ks, vs = (x.index_select(2, torch.cat(columns)).split([len(c) for c in columns], dim=2) for x in (k, v))
        mixed = []
        for tile, tile_q, tile_k, tile_v in zip(tiles, qs, ks, vs, strict=True):
            tensors = TileTensors(tile, tile_q, tile_k, tile_v, tile.allowed(call.plan, q.device), None)
            mixed.append(fused_tile(call, tensors) if alone else DenseKernel(call).forward(tensors, 0))
        back = torch.cat(rows).argsort()
        results.append(tuple(torch.cat(x, dim=2)[:, :, back] for x in zip(*mixed, strict=True)))
    return results[0][0] if alone else merged(results)


def fused_tile(call: Call, tile: TileTensors) -> tuple[Tensor, Tensor]:
    """A tile by the public kernel, and zeros: a tile that is not merged needs no log-sum-exp."""
    assert tile.visible is not None
    blank = ~tile.visible.any(-1, keepdim=True)
    mask = tile.visible | blank
    mask = mask if call.bias is None else additive_mask(call, tile, mask)
    values = fused(call, tile.q, tile.k, tile.v, mask, causal=False).masked_fill(blank, 0)
    return values, values[..., 0]


def indices(piece: slice, device: torch.device) -> Tensor:
    return torch.arange(piece.start, piece.stop, piece.step, device=device)


FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class FusedKernel(NamedTuple):
    """A tile by PyTorch's flash kernel for CPUs; a bias without gradients is added as a float mask."""

    call: Call
    learned: tuple[Tensor, ...] = ()

    def forward(self, tile: TileTensors, seed: int) -> tuple[Tensor, Tensor]:
        k, v = tile.repeated()
        return FORWARD(tile.q, k, v, attn_mask=self._offset(tile), scale=self.call.factor / self.call.temperature)

    def backward(self, tile: TileTensors, grad: Tensor, out: Tensor, lse: Tensor, seed: int) -> tuple[Tensor, ...]:
        k, v = tile.repeated()
        options = {"attn_mask": self._offset(tile), "scale": self.call.factor / self.call.temperature}
        for_q, *rest = BACKWARD(grad, tile.q, k, v, out, lse, 0.0, False, **options)
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

    kernel: FusedKernel | DenseKernel
    tiles: tuple[Tile, ...]
    seed: int

    def each(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[TileTensors]:
        """The tensors of each tile, one tile at a time."""
        call, latest, offset = self.kernel.call, None, None
        as_offset = isinstance(self.kernel, FusedKernel) and call.bias is None
        for tile in self.tiles:
            visible = None if tile.whole else tile.allowed(call.plan, q.device)
            if as_offset and visible is not latest:  # neighbors share one; all of them would take more than scores
                offset = None if visible is None else q.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
                latest = visible
            yield TileTensors(tile, q[:, :, tile.rows], tile.keys(k), tile.keys(v), visible, offset)


class TiledContext(SavedTensors):
    work: TiledWork


class Tiled(Function):
    @staticmethod
    def forward(ctx: TiledContext, work: TiledWork, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
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
    def backward(ctx: TiledContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        work = ctx.work
        into = [torch.zeros_like(x) for x in (q, k, v)]
        into_learned = [torch.zeros_like(x) for x in work.kernel.learned]
        for i, tile in enumerate(work.each(q, k, v)):
            rows = tile.tile.rows
            given = (grad[:, :, rows], out[:, :, rows], lse[:, :, rows])
            for_q, for_k, for_v, *rest = work.kernel.backward(tile, *given, work.seed + i)
            into[0][:, :, rows] += for_q
            columns = tile.tile.columns
            for total, part in zip(into[1:], (for_k, for_v), strict=True):
                for piece, summand in zip(columns, part.split([length(c) for c in columns], dim=2), strict=True):
                    total[:, :, piece] += summand
            for total, part in zip(into_learned, rest, strict=True):
                total += part
        return None, *into, *into_learned
