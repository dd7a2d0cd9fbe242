"""Running sums in chunks: Σ φ(q_i)·φ(k_j) v_j over the keys j that a query i may see, in linear time and memory.

Inside a chunk of tokens every pair is computed; the earlier chunks are one matrix, the sum of φ(k_j)ᵀ v_j (Hua et al.
2022, sec. 3.2). ``at_once`` computes all chunks together, for GPUs and compilers. ``ChunkByChunk`` computes one after
the other, with a written-out backward pass, for CPUs in eager mode: a chunk stays in the CPU's cache, and the backward
pass stores only the inputs, the denominators and one matrix per chunk. All chunks at once took 1.4 times as long there,
and autograd would store every pair.
"""

from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.call import SavedTensors
from regard.attention.slots import EMPTY

CHUNK = 64  # tokens; measured on a CPU, see bench/linear.py


class Documents(NamedTuple):
    """The documents of packed rows, by chunk: none sees the sum of another."""

    near: Tensor  # [B, S, C, C], pairs of a chunk in the same document
    open: Tensor  # [B, S, C], tokens of the document that continues from the chunk before
    kept: Tensor  # [B, S, C], tokens of the document that continues in the next chunk
    carry: Tensor  # [B, S], True where these are the same document
    last: Tensor  # [B, S], the document at each chunk's end

    @classmethod
    def of(cls, segment: Tensor, *, causal: bool, backwards: bool = False) -> Self:
        """From ``segment`` [B, N]; ``backwards``: with the rows reversed."""
        segment = F.pad(segment, (0, -segment.shape[1] % CHUNK), value=EMPTY)
        segment = (segment.flip(1) if backwards else segment).unflatten(1, (-1, CHUNK))
        filled = segment > EMPTY
        near = (segment[:, :, :, None] == segment[:, :, None, :]) & filled[:, :, None]
        last = segment[:, :, -1]
        before = F.pad(last, (1, 0), value=EMPTY)[:, :-1]
        return cls(
            near.tril() if causal else near,
            (segment == before[:, :, None]) & filled,
            (segment == last[:, :, None]) & filled,
            before == last,
            last,
        )


def at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Documents | None = None,
    before: Tensor | None = None,
    after: Documents | None = None,
) -> Tensor:
    """q [B, H, N, F], k [B, G, N, F], v [B, G, N, E] to the causal sums [B, H, N, E].

    ``before`` [B, G, F, E] is the sum over earlier tokens. ``after``, the documents of reversed rows, adds the later
    chunks, for sums over whole documents. Sums across chunks are float32 at least.
    """
    count = q.shape[2]
    q, k, v = in_chunks(q.unflatten(1, (k.shape[1], -1))).transpose(2, 3), in_chunks(k), in_chunks(v)
    scores = (q.flatten(3, 4) @ k.mT).unflatten(3, q.shape[3:5])  # every pair of a chunk: [B, G, S, R, C, C]
    scores = scores.tril() if documents is None else scores * documents.near[:, None, :, None]
    sums = scores.flatten(3, 4) @ v + from_before(q, k, v, documents, before)
    if after is not None:
        later = from_before(q.flip(2, 4), k.flip(2, 3), v.flip(2, 3), after, None)
        sums = sums + later.unflatten(3, q.shape[3:5]).flip(2, 4).flatten(3, 4)
    return sums.unflatten(3, q.shape[3:5]).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, :count]


def in_chunks(x: Tensor) -> Tensor:
    """[..., N, F] to [..., S, C, F]; the last chunk is padded with zeros, which add nothing to a sum."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK)).unflatten(-2, (-1, CHUNK))


def from_before(q: Tensor, k: Tensor, v: Tensor, documents: Documents | None, before: Tensor | None) -> Tensor:
    """The sums over the chunks before each query's own."""
    wide = torch.promote_types(v.dtype, torch.float32)
    if documents is None:
        held = (k.mT @ v).to(wide).cumsum(2)  # [B, G, S, F, E]
    else:
        q = q * documents.open[:, None, :, None, :, None]
        held = by_document(((k * documents.kept[:, None, :, :, None]).mT @ v).to(wide), documents.last)
    held = F.pad(held, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    held = held if before is None else held + before[:, :, None]
    return q.flatten(3, 4) @ held.to(v.dtype)


def by_document(held: Tensor, last: Tensor) -> Tensor:
    """Running sums over chunks [B, G, S, F, E] that restart with each document.

    By doubling (Hillis & Steele 1986): log S additions. Differences of one running sum would be fewer, but rounding
    would leak other documents.
    """
    step, chunks = 1, last.shape[1]
    while step < chunks:
        same = last == F.pad(last, (step, 0), value=EMPTY - 1)[:, :chunks]
        earlier = F.pad(held, (0, 0, 0, 0, step, 0))[:, :, :chunks]
        held = held + earlier * same[:, None, :, None, None]
        step *= 2
    return held


ONES = 8  # columns of ones after the values, whose sums are the denominators (one suffices; eight are aligned)


def floor(dtype: torch.dtype) -> float:
    """The least denominator, far enough from zero that gradients stay finite. Below it a row counts as blind."""
    return torch.finfo(dtype).tiny ** 0.75


def with_ones(x: Tensor, ones: int) -> Tensor:
    """Values with columns of ones, whose sums are the denominators."""
    return F.pad(x, (0, ones), value=1.0) if ones else x


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
        tokens = self.documents.open if which == "open" else self.documents.kept
        mine = tokens[:, self.number, None, None, : self.length, None]
        return (x.view(self.batch, self.groups, -1, self.length, x.shape[2]) * mine).view(x.shape)

    def carried(self, held: Tensor) -> Tensor:
        """The sum [BG, F, E] where its document continues through the chunk, else zero."""
        if self.documents is None:
            return held
        carry = self.documents.carry[:, self.number, None, None, None]
        return (held.view(self.batch, self.groups, *held.shape[1:]) * carry).view(held.shape)


class _ChunkContext(SavedTensors):
    documents: Documents | None
    ones: int


class ChunkByChunk(Function):
    """q [B, H, N, F], k [B, G, N, F], v [B, G, N, E] to the causal means (without ``ones``: sums) [B, H, N, E].

    ``before`` [B, G, F, E + ones] is the sum over earlier tokens, the state of ``LinearAttention``.
    """

    @staticmethod
    def forward(
        ctx: _ChunkContext,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        documents: Documents | None,
        ones: int,
        before: Tensor | None,
    ) -> Tensor:
        batch, heads, count, features = q.shape
        width, rows = v.shape[3], k.shape[0] * k.shape[1]
        out = q.new_empty(batch, count, heads, width).transpose(1, 2)  # the memory layout of the output projection
        totals = q.new_ones(batch, heads, count, min(ones, 1))
        held = q.new_zeros(rows, features, width + ones) if before is None else before.view(rows, features, -1)
        sums: list[Tensor] = []
        for number in range(-(-count // CHUNK)):
            chunk = _Chunk(number, k, documents)
            a, b, c = chunk.of(q), chunk.of(k), with_ones(chunk.of(v), ones)
            mixed = torch.bmm(chunk.near(torch.bmm(a, b.mT)), c)
            mixed.baddbmm_(chunk.only(a, "open"), held)
            if ones:
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
    def backward(ctx: _ChunkContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, totals, *sums = ctx.saved_tensors
        for_q, for_k, for_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        width = v.shape[3]
        held = torch.zeros_like(sums[0]) if sums else grad  # gradient of the sum after the chunk
        for number in reversed(range(len(sums))):
            chunk = _Chunk(number, k, ctx.documents)
            a, b, c, g = chunk.of(q), chunk.of(k), with_ones(chunk.of(v), ctx.ones), chunk.of(grad)
            if ctx.ones:
                g = _through_division(g, chunk.of(out), chunk.of(totals), ctx.ones)
            along = chunk.near(torch.bmm(g, c.mT))  # gradient of the similarities
            chunk.put(for_q, torch.bmm(along, b).add_(chunk.only(torch.bmm(g, sums[number].mT), "open")))
            chunk.put(for_k, torch.bmm(along.mT, a).add_(chunk.only(torch.bmm(c, held.mT), "kept")))
            weights = chunk.near(torch.bmm(a, b.mT))
            beyond = chunk.only(torch.bmm(b, held[..., :width]), "kept")
            chunk.put(for_v, torch.bmm(weights.mT, g[..., :width]).add_(beyond))
            held = torch.baddbmm(chunk.carried(held), chunk.only(a, "open").mT, g)
        return for_q, for_k, for_v, None, None, None


def _through_division(grad: Tensor, out: Tensor, total: Tensor, ones: int) -> Tensor:
    """The gradients of numerators and denominators, concatenated; a denominator at its floor is constant."""
    of_total = (grad * out).sum(-1, keepdim=True).neg_() / total
    of_total.masked_fill_(total <= floor(total.dtype), 0)
    both = grad.new_zeros(*grad.shape[:2], grad.shape[2] + ones)
    torch.div(grad, total, out=both[..., : grad.shape[2]])
    both[..., grad.shape[2]] = of_total[..., 0]
    return both
