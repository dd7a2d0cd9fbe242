"""Slots: who sits where, for queries and for keys.

Three different things are never mixed:

* ``order``    a unique index that masks compare (causal, window, strided ...)
* ``segment``  which document a slot belongs to; -1 is an empty slot (padding, unused cache)
* ``phase``    what rotary and biases see; it restarts per document and may have several axes

Every kind answers one question, ``at(row, index)``, with arithmetic or a lookup. The same method therefore serves a
dense mask (broadcast indices), a tile of one (a range of indices) and a FlexAttention kernel (scalar indices).
``Range``, ``Padded`` and ``Packed`` keep structure visible: fast paths look at the kind, never at the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

EMPTY = -1  # the segment of a slot that holds nothing


class TokenPosition(NamedTuple):
    """One side of a pair: its order, segment and phase, as tensors that broadcast with the other side's."""

    order: Tensor
    segment: Tensor
    phase: Tensor


class Range(NamedTuple):
    """``length`` slots of one document in a row, beginning at ``start``: the plain case.

    >>> Range(3, start=5).at(torch.tensor(0), torch.arange(3)).order.tolist()
    [5, 6, 7]
    """

    length: int
    start: int = 0

    @property
    def rows(self) -> int:
        return 1

    def at(self, row: Tensor, index: Tensor) -> TokenPosition:
        order = index + self.start
        return TokenPosition(order, torch.zeros_like(index), order)

    def phases(self, device: torch.device) -> Tensor:  # [1, N]
        return torch.arange(self.start, self.start + self.length, device=device)[None]


class Padded(NamedTuple):
    """Row ``b`` holds ``lengths[b]`` tokens, then padding up to ``length``."""

    lengths: Tensor  # [B], on the device
    length: int

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    def at(self, row: Tensor, index: Tensor) -> TokenPosition:
        segment = torch.where(index < self.lengths[row], 0, EMPTY)
        return TokenPosition(index, segment, index)

    def phases(self, device: torch.device) -> Tensor:  # [1, N]
        return torch.arange(self.length, device=device)[None]

    def filled(self) -> Tensor:  # [B, N], True where a token sits
        return torch.arange(self.length, device=self.lengths.device) < self.lengths[:, None]


class Packed(NamedTuple):
    """Each row holds several documents one after the other; none sees another, and phases restart with each.

    ``documents`` are their lengths per row where the host knows them (``Packed.of`` does), or ``None``: some fast
    paths cut the row at the boundaries and need them as numbers.
    """

    segment: Tensor  # [B, N], -1 after the last document
    phase: Tensor  # [B, N]
    documents: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(
        cls, documents: Sequence[Sequence[int]], length: int | None = None, device: torch.device | str = "cpu"
    ) -> Packed:
        """From the documents' lengths, row by row; ``length`` is the row's (the fullest row's by default).

        >>> Packed.of([[2, 1], [1]]).segment.tolist()
        [[0, 0, 1], [0, -1, -1]]
        """
        lengths = tuple(tuple(int(n) for n in row) for row in documents)
        if any(n < 1 for row in lengths for n in row):
            raise ValueError(f"a packed document has at least one token; the lengths given are {documents}")
        width = max(sum(row) for row in lengths) if length is None else length
        if any(sum(row) > width for row in lengths):
            raise ValueError(f"documents of {max(map(sum, lengths))} tokens do not fit a row of {width}")
        segment = torch.full((len(lengths), width), EMPTY)
        phase = torch.zeros(len(lengths), width, dtype=torch.long)
        for b, row in enumerate(lengths):
            start = 0
            for s, n in enumerate(row):
                segment[b, start : start + n] = s
                phase[b, start : start + n] = torch.arange(n)
                start += n
        return cls(segment.to(device), phase.to(device), lengths)

    @property
    def length(self) -> int:
        return self.segment.shape[1]

    @property
    def rows(self) -> int:
        return self.segment.shape[0]

    def at(self, row: Tensor, index: Tensor) -> TokenPosition:
        return TokenPosition(index, self.segment[row, index], self.phase[row, index])

    def phases(self, device: torch.device) -> Tensor:  # [B, N]
        return self.phase


class Slots(NamedTuple):
    """The general kind: three tensors that say everything. Caches, graphs and images use it."""

    order: Tensor  # [B or 1, N]
    segment: Tensor  # [B or 1, N]
    phase: Tensor  # [B or 1, N] or [B or 1, N, axes]

    @property
    def length(self) -> int:
        return self.order.shape[1]

    @property
    def rows(self) -> int:
        return self.order.shape[0]

    def at(self, row: Tensor, index: Tensor) -> TokenPosition:
        return TokenPosition(self.order[row, index], self.segment[row, index], self.phase[row, index])

    def phases(self, device: torch.device) -> Tensor:
        return self.phase


AnySlots = Range | Padded | Packed | Slots


class Pairs(NamedTuple):
    """Every (query, key) under consideration: masks and biases are functions of this and nothing else.

    Dense: ``batch`` [B,1,1,1], ``head`` [1,H,1,1], the seats of ``q`` [B|1,1,Q,1] and of ``k`` [B|1,1,1,K].
    Inside a FlexAttention kernel the same fields are scalars.
    """

    batch: Tensor
    head: Tensor
    q: TokenPosition
    k: TokenPosition


def seat(slots: AnySlots, batch: Tensor, index: Tensor) -> TokenPosition:
    """The seat of ``index`` in the row that ``batch`` uses (slots shared by all rows have just one)."""
    return slots.at(batch if slots.rows > 1 else torch.zeros_like(batch), index)


def make_pairs(
    queries: AnySlots,
    keys: AnySlots,
    *,
    heads: int,
    device: torch.device,
    batch: int,
    rows: slice = slice(None),
    columns: slice | tuple[slice, ...] = slice(None),
) -> Pairs:
    """Dense pairs, or the tile of them at query indices ``rows`` and key indices ``columns`` (several: joined)."""
    b = torch.arange(batch, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    q = _picked(queries.length, rows, device)[None, None, :, None]
    picked = [_picked(keys.length, one, device) for one in (columns if isinstance(columns, tuple) else (columns,))]
    k = (torch.cat(picked) if len(picked) > 1 else picked[0])[None, None, None, :]
    return Pairs(b, h, seat(queries, b, q), seat(keys, b, k))


def _picked(length: int, piece: slice, device: torch.device) -> Tensor:
    if piece.start is None or piece.stop is None:
        return torch.arange(length, device=device)[piece]
    return torch.arange(piece.start, min(piece.stop, length), piece.step or 1, device=device)


def valid(pairs: Pairs) -> Tensor:
    """Both slots hold something, of one document. ANDed after the mask, so that ``~`` cannot revive an empty slot."""
    return (pairs.q.segment == pairs.k.segment) & (pairs.q.segment > EMPTY)
