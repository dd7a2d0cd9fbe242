"""The flex backend: one FlexAttention kernel for every mask and bias, with a block layout from structure.

``create_block_mask`` evaluates every pair. Here the layout follows from the least and greatest order of each block
through ``Mask.verdict``: O(blocks), no N×N tensor.
"""

import warnings
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from regard.attention.backends.sdpa import not_plain_softmax
from regard.attention.call import Backend, Call, Out, Plan, allowed, applying
from regard.attention.masks.mask import StridePattern
from regard.attention.slots import Packed, first_order
from regard.attention.tiling.regroup import MaskPart, Regrouping, merged, parts
from regard.attention.tiling.tile import bounds, consecutive, layout

BLOCK = 128
MIN_WIDTH = 16  # of a head, in the CUDA kernels
WIDE = 1024  # a mask that spans no more keys than this is not worth a regrouping
# The default tiles of the forward kernel are made for 16 bits and no bias: at float32, or with a learned table read in
# the kernel, they outgrow a multiprocessor's memory (seen on an H200 at head width 64).
SMALL_TILES = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "fwd_num_stages": 2}


class Flex(Backend):
    """``flex_attention``, compiled. ``interpreted`` runs it without a compiler on any device: slow, for tests."""

    name = "flex"

    def __init__(self, interpreted: bool = False):
        self.interpreted = interpreted

    def refuses(self, call: Call) -> list[str]:
        cuda, tensors = call.q.device.type == "cuda", (call.q, call.k, call.v)
        backward = not self.interpreted or any(x.requires_grad for x in tensors)
        narrow = min(call.q.shape[-1], call.v.shape[-1]) < MIN_WIDTH
        reasons = {
            "FlexAttention has no backward pass outside CUDA": backward and not cuda,
            f"FlexAttention needs heads of width {MIN_WIDTH} or more on CUDA": narrow and cuda,
            "FlexAttention has no float64 on CUDA": call.q.dtype == torch.float64 and cuda,
            "FlexAttention has no dropout": call.dropout > 0,
        }
        return not_plain_softmax(call, takes_bias=True) + applying(reasons)

    def prepare(self, plan: Plan, device: torch.device) -> tuple[tuple[Regrouping, BlockMask], ...]:
        """For each disjoint part of the mask the regrouping of its tokens and the blocks to read."""
        return tuple(_layout(plan, part, device) for part in _parts(plan))

    def run(self, call: Call) -> Out:
        results = [self._part(call, group, blocks) for group, blocks in call.plan.prepared]
        return Out(results[0][0] if len(results) == 1 else merged(results))

    def _part(self, call: Call, group: Regrouping, blocks: BlockMask) -> tuple[Tensor, Tensor]:
        """The values and log-sum-exp of one part of the mask."""
        plan, bias, temperature = call.plan, call.bias, call.temperature

        def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            pairs = group.pairs(plan, b, h, q, k)
            return bias.adjust(score, pairs) / temperature  # pyright: ignore[reportOptionalMemberAccess]

        options: dict[str, Any] = {
            "score_mod": None if bias is None else score_mod,
            "block_mask": blocks,
            "scale": call.factor / (temperature if bias is None else 1),
            "enable_gqa": call.q.shape[1] != call.k.shape[1],
            "kernel_options": SMALL_TILES if bias is not None or call.q.dtype == torch.float32 else None,
        }
        several = len(plan.prepared) > 1
        if several:
            options["return_aux"] = AuxRequest(lse=True)
        kernel = flex_attention if self.interpreted or torch.compiler.is_compiling() else _compiled()
        with warnings.catch_warnings() if self.interpreted else nullcontext():
            if self.interpreted:
                warnings.simplefilter("ignore")  # "called without torch.compile": that is the point here
            result = kernel(group.queries(call.q), group.keys(call.k), group.keys(call.v), **options)
        if not several:
            return group.back(result, call.q.shape[2]), result
        values, aux = result
        lse = group.back(aux.lse[..., None], call.q.shape[2])[..., 0]
        return group.back(values, call.q.shape[2]), lse


@cache
def _compiled():
    return torch.compile(flex_attention)


def _parts(plan: Plan) -> tuple[MaskPart, ...]:
    """The parts of the mask; one alone if only the device knows the order or the two sides are not aligned."""
    whole = (MaskPart(plan.mask, StridePattern(1)),)
    if not consecutive(plan):
        return whole
    divided = parts(plan.mask, plan.keys.length, WIDE, isinstance(plan.keys, Packed))
    apart = first_order(plan.queries) - first_order(plan.keys)
    return whole if any(part.pattern.residues is None and apart % part.pattern.step for part in divided) else divided


def _layout(plan: Plan, part: MaskPart, device: torch.device) -> tuple[Regrouping, BlockMask]:
    group = Regrouping.of(part.pattern, plan, BLOCK, device)
    queries = bounds(plan.queries, device, BLOCK, group.rows, group.across)
    keys = bounds(plan.keys, device, BLOCK, group.columns, group.step)
    may, must = layout(part.mask, queries, keys)
    shape = torch.broadcast_shapes(may.shape, must.shape)
    may, must = group.joined(may.expand(shape), must.expand(shape))  # [B|1, query blocks, key blocks]

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = allowed(part.mask, group.pairs(plan, b, h, q, k))
        return seen if group.plain else seen & group.inside(plan, b, q, k)

    blocks = BlockMask.from_kv_blocks(
        *_listed(may & ~must),
        *_listed(must),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(group.count(plan.queries.length, across=True), group.count(plan.keys.length)),
    )
    return group, blocks


def _listed(layout: Tensor) -> tuple[Tensor, Tensor]:
    """[B, Q, K] booleans as FlexAttention's block lists: counts [B,1,Q] and indices [B,1,Q,K]."""
    counts = layout.sum(-1, dtype=torch.int32)
    indices = layout.int().argsort(dim=-1, descending=True, stable=True).int()
    return counts[:, None].contiguous(), indices[:, None].contiguous()
