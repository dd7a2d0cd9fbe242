"""Linear attention one chunk after the other, with a written-out backward pass, for CPUs in eager mode.

A chunk stays in the CPU's cache, and the backward pass stores only the inputs, the denominators and one matrix per
chunk. All chunks at once as in ``chunked.py`` took 1.4 times as long, and autograd would store every pair.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.attention.mechanisms.chunked import CHUNK, Documents

ONES = 8  # columns of ones after the values, whose sums are the denominators (one suffices; eight are aligned)


def floor(dtype: torch.dtype) -> float:
    """The least denominator, far enough from zero that gradients stay finite. Below it a row counts as blind."""
    return torch.finfo(dtype).tiny ** 0.75


def chunk_by_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Documents | None,
    normalize: bool,
    before: Tensor | None = None,
) -> Tensor:
    """q [B, H, N, F], k [B, G, N, F], v [B, G, N, E] to the causal means (or sums) [B, H, N, E].

    ``before`` [B, G, F, E + ONES] is the sum over earlier tokens, the state of ``LinearAttention``.
    """
    return _ChunkByChunk.apply(q, k, v, documents, normalize, before)


class _Chunk:
    """The indices of one chunk, and what its tokens may see."""

    def __init__(self, number: int, k: Tensor, documents: Documents | None):
        self.batch, self.groups, count = k.shape[:3]
        self.where = slice(number * CHUNK, min((number + 1) * CHUNK, count))
        self.length = self.where.stop - self.where.start
        self.number, self.documents = number, documents

    def of(self, x: Tensor) -> Tensor:
        """[B, H or G, N, F] to [BG, RC or C, F]."""
        return x[:, :, self.where].reshape(self.batch * self.groups, -1, x.shape[3])

    def put(self, into: Tensor, x: Tensor) -> None:
        """Write the inverse of ``of`` into a tensor."""
        part = into[:, :, self.where]
        part.copy_(x.view(part.shape))

    def near(self, scores: Tensor) -> Tensor:
        """Scores [BG, RC, C] with hidden pairs of the chunk set to zero, in place."""
        if self.documents is None:
            scores.view(-1, self.length, self.length).tril_()
        else:
            seen = self.documents.near[:, self.number, None, None, : self.length, : self.length]
            scores.view(self.batch, self.groups, -1, self.length, self.length).mul_(seen)
        return scores

    def only(self, x: Tensor, which: Literal["open", "kept"]) -> Tensor:
        """``x``, zero at tokens of other documents than the ``open`` or ``kept`` one (see ``Documents``)."""
        if self.documents is None:
            return x
        mine = (self.documents.open if which == "open" else self.documents.kept)[
            :, self.number, None, None, : self.length, None
        ]
        return (x.view(self.batch, self.groups, -1, self.length, x.shape[2]) * mine).view(x.shape)

    def carried(self, held: Tensor) -> Tensor:
        """The sum [BG, F, E] where its document continues through the chunk, else zero."""
        if self.documents is None:
            return held
        carry = self.documents.carry[:, self.number, None, None, None]
        return (held.view(self.batch, self.groups, *held.shape[1:]) * carry).view(held.shape)


class _ChunkByChunk(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, documents: Documents | None, normalize: bool, before: Tensor | None
    ) -> Tensor:
        batch, heads, count, features = q.shape
        width, rows = v.shape[3], k.shape[0] * k.shape[1]
        ones = ONES if normalize else 0
        out = q.new_empty(batch, count, heads, width).transpose(1, 2)  # the memory layout of the output projection
        totals = q.new_ones(batch, heads, count, 1) if normalize else None
        held = q.new_zeros(rows, features, width + ones) if before is None else before.view(rows, features, -1)
        sums: list[Tensor] = []
        for number in range(-(-count // CHUNK)):
            chunk = _Chunk(number, k, documents)
            a, b, c = chunk.of(q), chunk.of(k), _with_ones(chunk.of(v), ones)
            mixed = torch.bmm(chunk.near(torch.bmm(a, b.mT)), c)
            mixed.baddbmm_(chunk.only(a, "open"), held)
            if totals is not None:
                total = mixed[..., width : width + 1].clamp(min=floor(q.dtype))
                mixed = mixed[..., :width] / total
                chunk.put(totals, total)
            chunk.put(out, mixed)
            sums.append(held)
            held = torch.baddbmm(chunk.carried(held), chunk.only(b, "kept").mT, c)
        ctx.save_for_backward(q, k, v, out, totals, *sums)
        ctx.documents, ctx.ones = documents, ones
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, totals, *sums = ctx.saved_tensors
        for_q, for_k, for_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        width = v.shape[3]
        held = torch.zeros_like(sums[0]) if sums else grad  # gradient of the sum after the chunk
        for number in reversed(range(len(sums))):
            chunk = _Chunk(number, k, ctx.documents)
            a, b, c, g = chunk.of(q), chunk.of(k), _with_ones(chunk.of(v), ctx.ones), chunk.of(grad)
            if totals is not None:
                g = _through_division(g, chunk.of(out), chunk.of(totals), ctx.ones)
            along = chunk.near(torch.bmm(g, c.mT))  # gradient of the similarities
            chunk.put(for_q, torch.bmm(along, b).add_(chunk.only(torch.bmm(g, sums[number].mT), "open")))
            chunk.put(for_k, torch.bmm(along.mT, a).add_(chunk.only(torch.bmm(c, held.mT), "kept")))
            weights = chunk.near(torch.bmm(a, b.mT))
            chunk.put(
                for_v,
                torch.bmm(weights.mT, g[..., :width]).add_(chunk.only(torch.bmm(b, held[..., :width]), "kept")),
            )
            held = torch.baddbmm(chunk.carried(held), chunk.only(a, "open").mT, g)
        return for_q, for_k, for_v, None, None, None


def _with_ones(x: Tensor, ones: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, ones), value=1.0) if ones else x


def _through_division(grad: Tensor, out: Tensor, total: Tensor, ones: int) -> Tensor:
    """The gradients of numerators and denominators, concatenated; a denominator at its floor is constant."""
    of_total = (grad * out).sum(-1, keepdim=True).neg_() / total
    of_total.masked_fill_(total <= floor(total.dtype), 0)
    both = grad.new_zeros(*grad.shape[:2], grad.shape[2] + ones)
    torch.div(grad, total, out=both[..., : grad.shape[2]])
    both[..., grad.shape[2]] = of_total[..., 0]
    return both
