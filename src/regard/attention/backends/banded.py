"""The banded backend: exact attention in blocks of queries, each with only the keys its mask can reach.

Cost and memory are O(N·w) for a mask that lets a query see w keys, in both directions of the computation, on any
device, wherever those keys are: a window, sinks, global tokens, blocks, documents, or every n-th key, for which
tokens are regrouped (tiling/regroup.py). Masks without such structure work too, without an N×N tensor.
"""

import torch
from torch import Tensor

from regard.attention.backends.sdpa import even_widths, fused, not_plain_softmax
from regard.attention.backends.tiled import (
    DenseKernel,
    Tiled,
    TiledWork,
    TileTensors,
    additive_mask,
    draw_seed,
    kernel_for,
)
from regard.attention.call import Backend, Call, Out, Plan, in_one_type
from regard.attention.tiling.regroup import merged
from regard.attention.tiling.tile import Tile, consecutive, make_tiles


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
        kernel, q = kernel_for(call, q)
        tiles = tuple(tile for part in call.plan.prepared for tile in part)
        with torch.autocast(q.device.type, enabled=False):
            values = Tiled.apply(TiledWork(kernel, tiles, draw_seed(call)), q, k, v, *kernel.learned)
        return Out(values[..., :width] if width != values.shape[-1] else values)


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
