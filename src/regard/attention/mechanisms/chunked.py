"""Running sums in chunks: Σ φ(q_i)·φ(k_j) v_j over the keys j that a query i may see, in linear time and memory.

Tokens are cut into chunks. Inside a chunk every pair is looked at; what came before it is one matrix, the sum of
φ(k_j)ᵀ v_j (Hua et al. 2022, sec. 3.2). Chunk by chunk these are few large products. ``at_once`` makes them for all
chunks together, which is what a GPU and a compiler want; ``rolled.py`` one chunk after the other, which is what a CPU's
cache wants.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.slots import EMPTY

CHUNK = 64  # tokens; measured on a CPU, see bench/linear.py


class Documents(NamedTuple):
    """Where documents begin and end in rows that hold several, chunk by chunk: none sees another's sum."""

    near: Tensor  # [B, S, C, C], True where two tokens of a chunk are of one document
    open: Tensor  # [B, S, C], tokens of the document that was open before the chunk
    kept: Tensor  # [B, S, C], tokens of the document that is open after it
    carry: Tensor  # [B, S], True where that is the same one
    last: Tensor  # [B, S], the document at each chunk's end

    @classmethod
    def of(cls, segment: Tensor, *, causal: bool, backwards: bool = False) -> Documents:
        """From ``segment`` [B, N]; ``backwards`` reads the rows from their end."""
        segment = F.pad(segment, (0, -segment.shape[1] % CHUNK), value=EMPTY)
        segment = (segment.flip(1) if backwards else segment).unflatten(1, (-1, CHUNK))
        held = segment > EMPTY
        near = (segment[:, :, :, None] == segment[:, :, None, :]) & held[:, :, None]
        last = segment[:, :, -1]
        before = F.pad(last, (1, 0), value=EMPTY)[:, :-1]
        return cls(
            near.tril() if causal else near,
            (segment == before[:, :, None]) & held,
            (segment == last[:, :, None]) & held,
            before == last,
            last,
        )


def at_once(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents | None = None, before: Tensor | None = None
) -> Tensor:
    """q [B, H, N, F], k [B, G, N, F], v [B, G, N, E] to the causal sums [B, H, N, E].

    ``before`` [B, G, F, E] is the sum that the row goes on from. Sums across chunks are float32 at least.
    """
    count = q.shape[2]
    q, k, v = in_chunks(q.unflatten(1, (k.shape[1], -1))).transpose(2, 3), in_chunks(k), in_chunks(v)
    scores = alike(q, k)  # [B, G, S, R, C, C]
    scores = scores.tril() if documents is None else scores * documents.near[:, None, :, None]
    sums = scores.flatten(3, 4) @ v + from_before(q, k, v, documents, before)
    return whole(sums, q, count)


def both_ways(q: Tensor, k: Tensor, v: Tensor, there: Documents, back: Documents) -> Tensor:
    """The sums over each token's whole document: its chunk, what lies before, and what lies after."""
    count = q.shape[2]
    q, k, v = in_chunks(q.unflatten(1, (k.shape[1], -1))).transpose(2, 3), in_chunks(k), in_chunks(v)
    scores = alike(q, k) * there.near[:, None, :, None]
    after = from_before(q.flip(2, 4), k.flip(2, 3), v.flip(2, 3), back, None)
    after = after.unflatten(3, q.shape[3:5]).flip(2, 4).flatten(3, 4)
    return whole(scores.flatten(3, 4) @ v + from_before(q, k, v, there, None) + after, q, count)


def in_chunks(x: Tensor) -> Tensor:
    """[..., N, F] to [..., S, C, F]; zeros fill the last chunk, and what has no features adds nothing."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK)).unflatten(-2, (-1, CHUNK))


def whole(sums: Tensor, q: Tensor, count: int) -> Tensor:
    """[B, G, S, R·C, E] back to [B, H, N, E]."""
    return sums.unflatten(3, q.shape[3:5]).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, :count]


def alike(q: Tensor, k: Tensor) -> Tensor:
    """Every pair of a chunk: q [B, G, S, R, C, F] and k [B, G, S, C, F] to [B, G, S, R, C, C]."""
    return (q.flatten(3, 4) @ k.mT).unflatten(3, q.shape[3:5])


def from_before(q: Tensor, k: Tensor, v: Tensor, documents: Documents | None, before: Tensor | None) -> Tensor:
    """What each query takes from the chunks before its own."""
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
    """Running sums over chunks [B, G, S, F, E] that begin anew with each document.

    By doubling (Hillis & Steele 1986): log S additions. Differences of one running sum would be fewer, but would leave
    a trace of other documents.
    """
    step, chunks = 1, last.shape[1]
    while step < chunks:
        same = last == F.pad(last, (step, 0), value=EMPTY - 1)[:, :chunks]
        earlier = F.pad(held, (0, 0, 0, 0, step, 0))[:, :, :chunks]
        held = held + earlier * same[:, None, :, None, None]
        step *= 2
    return held
