"""The banded backend: exact attention in blocks of queries, each with only the keys its mask can reach.

Cost and memory are O(N·w) for a mask that lets a query see w keys, in both directions of the computation, on any
device, wherever those keys are: a window, sinks, global tokens, blocks, documents, or every so many-th key, for which
tokens are regrouped (parts.py). Masks without such structure still work and still never build N×N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.sdpa import even_widths, fused, not_plain_softmax
from regard.attention.call import Call, Out, Plan
from regard.attention.slots import Packed, Padded, Range
from regard.attention.tiling.bands import Band, Bands, length, make_bands
from regard.attention.tiling.merge import merged
from regard.attention.tiling.tiles import Fused, Plain, Tile, Tiled, Work


class Banded:
    """Tiles of scores, each through a fused kernel where it can, merged by their log-sum-exp."""

    name = "banded"

    def refuses(self, call: Call) -> list[str]:
        reasons = not_plain_softmax(call, takes_bias=True)
        if not all(isinstance(s, Range | Padded | Packed) for s in (call.plan.queries, call.plan.keys)):
            reasons.append("the slots' order is known only to the device, so no key range can be cut")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> Bands:
        return make_bands(plan, device)

    def run(self, call: Call) -> Out:
        q, k, v, width = even_widths(*in_one_type(call.q, call.k, call.v))
        if torch.compiler.is_compiling():
            return Out(traced(call, q, k, v)[..., :width], None)
        learned = tuple(p for p in call.bias.parameters() if p.requires_grad) if call.bias is not None else ()
        additive = call.bias is None or call.bias.additive
        if q.device.type == "cpu" and additive and not learned and not call.dropout:
            scale = call.factor / call.temperature
            if scale <= 0:  # the kernel bounds a row by its greatest product, before it scales
                q, call = q * scale, call._replace(scale=call.temperature)
            kernel: Fused | Plain = Fused(without_tensors(call, q.shape[-1]))
        else:
            kernel = Plain(without_tensors(call, q.shape[-1]), learned)
        bands = tuple(band for part in call.plan.prepared.parts for band in part)
        seed = int(torch.randint(2**62, ())) if call.dropout else 0
        with torch.autocast(q.device.type, enabled=False):
            values = Tiled.apply(Work(kernel.call, kernel, bands, seed), q, k, v, *learned)
        return Out(values[..., :width] if width != values.shape[-1] else values, None)


def in_one_type(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, what it would make of them: the kernels here are called past it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) if x.dtype != torch.float64 else x for x in tensors)


def without_tensors(call: Call, width: int) -> Call:
    """What a kernel has to know of a call: autograd keeps the tensors, and the scale is that of the real width."""
    none = call.q.new_empty(0)
    return call._replace(q=none, k=none, v=none, scale=call.factor)


def traced(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for a compiler, which makes its own backward pass.

    Keys are gathered once for all blocks: the backward of a slice per block would touch all of k for every block.
    """
    parts: tuple[tuple[Band, ...], ...] = call.plan.prepared.parts
    alone = len(parts) == 1 and (call.bias is None or call.bias.additive)
    kernel, found = Plain(call), []
    for bands in parts:
        rows = [indices(band.rows, q.device) for band in bands]
        columns = [torch.cat([indices(piece, q.device) for piece in band.columns]) for band in bands]
        sizes = [sum(map(length, band.columns)) for band in bands]
        qs = q.index_select(2, torch.cat(rows)).split([length(band.rows) for band in bands], dim=2)
        ks, vs = (x.index_select(2, torch.cat(columns)).split(sizes, dim=2) for x in (k, v))
        values, totals = [], []
        for band, mine, near_k, near_v in zip(bands, qs, ks, vs, strict=True):
            tile = Tile(band, mine, near_k, near_v, band.look(call.plan, q.device), None)
            one, total = fused_tile(call, tile) if alone else kernel.forward(tile, 0)
            values.append(one)
            totals.append(total)
        back = torch.cat(rows).argsort()
        found.append((torch.cat(values, dim=2)[:, :, back], torch.cat(totals, dim=2)[:, :, back]))
    if alone:
        return found[0][0]
    return merged([values for values, _ in found], torch.stack([total for _, total in found]))


def fused_tile(call: Call, tile: Tile) -> tuple[Tensor, Tensor]:
    """A tile through the public kernel, and zeros: what is alone needs no log-sum-exp."""
    assert tile.seen is not None
    blank = ~tile.seen.any(-1, keepdim=True)
    offset = tile.seen | blank
    if call.bias is not None:
        zero = tile.q.new_zeros(call.plan.rows, *tile.q.shape[1:3], tile.k.shape[2])
        added = call.bias.adjust(zero, tile.pairs(call)) / call.temperature
        offset = added.masked_fill(~offset, float("-inf"))
    values = fused(call, tile.q, tile.k, tile.v, offset, causal=False).masked_fill(blank, 0)
    return values, values[..., 0]


def indices(piece: slice, device: torch.device) -> Tensor:
    return torch.arange(piece.start, piece.stop, piece.step, device=device)
