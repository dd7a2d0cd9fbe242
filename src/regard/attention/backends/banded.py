"""The banded backend: exact attention in blocks of queries, each with only the keys its mask can reach.

Cost and memory are O(N·w) for a mask that lets a query see w keys, in both directions of the computation, on any
device, wherever those keys are: a window, sinks, global tokens, blocks, documents, or every n-th key, for which
tokens are regrouped (tiling/disjoint.py). Masks without such structure work too, without an N×N tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.sdpa import even_widths, fused, not_plain_softmax
from regard.attention.call import Call, Out, Plan
from regard.attention.slots import Packed, Padded, Range
from regard.attention.tiling.bands import make_tiles
from regard.attention.tiling.kernels import DenseKernel, FusedKernel, Tiled, TiledWork, TileTensors, additive_mask
from regard.attention.tiling.merge import merged
from regard.attention.tiling.tile import Tile, length


class Banded:
    """Tiles of scores, each through a fused kernel where it can, merged by their log-sum-exp."""

    name = "banded"

    def refuses(self, call: Call) -> list[str]:
        reasons = not_plain_softmax(call, takes_bias=True)
        if not all(isinstance(s, Range | Padded | Packed) for s in (call.plan.queries, call.plan.keys)):
            reasons.append("the slots' order is known only to the device, so no key range can be cut")
        return reasons

    def prepare(self, plan: Plan, device: torch.device) -> tuple[tuple[Tile, ...], ...]:
        return make_tiles(plan, device)

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
            kernel: FusedKernel | DenseKernel = FusedKernel(without_tensors(call, q.shape[-1]))
        else:
            kernel = DenseKernel(without_tensors(call, q.shape[-1]), learned)
        tiles = tuple(tile for part in call.plan.prepared for tile in part)
        seed = int(torch.randint(2**62, ())) if call.dropout else 0
        with torch.autocast(q.device.type, enabled=False):
            values = Tiled.apply(TiledWork(kernel, tiles, seed), q, k, v, *learned)
        return Out(values[..., :width] if width != values.shape[-1] else values, None)


def in_one_type(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, the dtype that it would choose: the kernels here are called without it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) if x.dtype != torch.float64 else x for x in tensors)


def without_tensors(call: Call, width: int) -> Call:
    """The call without its tensors, which autograd keeps, and with the scale of the unpadded width."""
    none = call.q.new_empty(0)
    return call._replace(q=none, k=none, v=none, scale=call.factor)


def traced(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for a compiler, which derives the backward pass itself.

    Keys are gathered once for all tiles: the backward of one slice per tile would read all of k for every tile.
    """
    parts: tuple[tuple[Tile, ...], ...] = call.plan.prepared
    alone = len(parts) == 1 and (call.bias is None or call.bias.additive)
    kernel, results = DenseKernel(call), []
    for tiles in parts:
        rows = [indices(tile.rows, q.device) for tile in tiles]
        columns = [torch.cat([indices(piece, q.device) for piece in tile.columns]) for tile in tiles]
        sizes = [sum(map(length, tile.columns)) for tile in tiles]
        qs = q.index_select(2, torch.cat(rows)).split([length(tile.rows) for tile in tiles], dim=2)
        ks, vs = (x.index_select(2, torch.cat(columns)).split(sizes, dim=2) for x in (k, v))
        values, totals = [], []
        for tile, tile_q, tile_k, tile_v in zip(tiles, qs, ks, vs, strict=True):
            tensors = TileTensors(tile, tile_q, tile_k, tile_v, tile.allowed(call.plan, q.device), None)
            mixed, total = fused_tile(call, tensors) if alone else kernel.forward(tensors, 0)
            values.append(mixed)
            totals.append(total)
        back = torch.cat(rows).argsort()
        results.append((torch.cat(values, dim=2)[:, :, back], torch.cat(totals, dim=2)[:, :, back]))
    if alone:
        return results[0][0]
    return merged([values for values, _ in results], torch.stack([total for _, total in results]))


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
