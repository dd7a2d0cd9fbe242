"""Running sums in chunks: Σ φ(q_i)·φ(k_j) v_j over the keys j that a query i may see, in linear time and memory.

Inside a chunk of tokens every pair is computed; the earlier chunks are one matrix, the sum of φ(k_j)ᵀ v_j (Hua et al.
2022, sec. 3.2). ``at_once`` computes all chunks together, for GPUs and compilers; ``chunked_cpu.py`` one after the
other, which stays in a CPU's cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
    def of(cls, segment: Tensor, *, causal: bool, backwards: bool = False) -> Documents:
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
    q: Tensor, k: Tensor, v: Tensor, documents: Documents | None = None, before: Tensor | None = None
) -> Tensor:
    """q [B, H, N, F], k [B, G, N, F], v [B, G, N, E] to the causal sums [B, H, N, E].

    ``before`` [B, G, F, E] is the sum over earlier tokens. Sums across chunks are float32 at least.
    """
    count = q.shape[2]
    q, k, v = in_chunks(q.unflatten(1, (k.shape[1], -1))).transpose(2, 3), in_chunks(k), in_chunks(v)
    scores = similarities(q, k)  # [B, G, S, R, C, C]
    scores = scores.tril() if documents is None else scores * documents.near[:, None, :, None]
    sums = scores.flatten(3, 4) @ v + from_before(q, k, v, documents, before)
    return joined(sums, q, count)


def both_ways(q: Tensor, k: Tensor, v: Tensor, there: Documents, back: Documents) -> Tensor:
    """The sums over each token's whole document: its chunk, earlier chunks and later ones."""
    count = q.shape[2]
    q, k, v = in_chunks(q.unflatten(1, (k.shape[1], -1))).transpose(2, 3), in_chunks(k), in_chunks(v)
    scores = similarities(q, k) * there.near[:, None, :, None]
    after = from_before(q.flip(2, 4), k.flip(2, 3), v.flip(2, 3), back, None)
    after = after.unflatten(3, q.shape[3:5]).flip(2, 4).flatten(3, 4)
    return joined(scores.flatten(3, 4) @ v + from_before(q, k, v, there, None) + after, q, count)


def in_chunks(x: Tensor) -> Tensor:
    """[..., N, F] to [..., S, C, F]; the last chunk is padded with zeros, which add nothing to a sum."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK)).unflatten(-2, (-1, CHUNK))


def joined(sums: Tensor, q: Tensor, count: int) -> Tensor:
    """[B, G, S, R·C, E] back to [B, H, N, E]."""
    return sums.unflatten(3, q.shape[3:5]).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, :count]


def similarities(q: Tensor, k: Tensor) -> Tensor:
    """Every pair of a chunk: q [B, G, S, R, C, F] and k [B, G, S, C, F] to [B, G, S, R, C, C]."""
    return (q.flatten(3, 4) @ k.mT).unflatten(3, q.shape[3:5])


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
