"""Slots: the positions of the queries and keys of a call.

Three different things are kept apart:

* ``order``    a unique index within the row that masks compare (causal, window, strided ...)
* ``segment``  which document a slot belongs to; -1 is an empty slot (padding, unused cache)
* ``phase``    the position within the document, which position encodings and biases read (of a rotation it is the
               angle's factor, hence the name); it restarts with each document and may have several axes (images)

A row of two packed documents of 3 and 2 tokens and one place of padding: order 0 1 2 3 4 5, segment 0 0 0 1 1 -1,
phase 0 1 2 0 1 0. In a row with one document order and phase are equal.

Every kind has one method, ``at(row, index)``, by arithmetic or lookup. It serves a dense mask (broadcast indices), a
tile of one (a range of indices) and a FlexAttention kernel (scalar indices). ``Range``, ``Padded`` and ``Packed`` keep
structure visible: fast paths decide by the kind, never by the data.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

EMPTY = -1  # the segment of an empty slot


class TokenPosition(NamedTuple):
    """One side of a pair: its order, segment and phase, as tensors that broadcast with the other side's."""

    order: Tensor
    segment: Tensor
    phase: Tensor


class Range(NamedTuple):
    """``length`` consecutive slots of one document from order ``start`` on: the plain case.

    >>> Range(3, start=5).at(torch.tensor(0), torch.arange(3)).order.tolist()
    [5, 6, 7]
    """

    length: int
    start: int = 0
    rows = 1  # all rows of a batch share it

    def at(self, row: Tensor, index: Tensor) -> TokenPosition:
        order = index + self.start
        return TokenPosition(order, torch.zeros_like(index), order)

    def phases(self, device: torch.device) -> Tensor:  # [1, N]
        return torch.arange(self.start, self.start + self.length, device=device)[None]

    def to(self, device: torch.device) -> Self:
        return self


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

    def to(self, device: torch.device) -> Self:
        return self if self.lengths.device == device else self._replace(lengths=self.lengths.to(device))

    def filled(self) -> Tensor:  # [B, N], True where there is a token
        return torch.arange(self.length, device=self.lengths.device) < self.lengths[:, None]


class Packed(NamedTuple):
    """Each row holds several documents one after the other; none sees another, and phases restart with each.

    ``documents`` are their lengths per row if the host knows them (``Packed.of`` does), else ``None``: some fast paths
    cut the row at the boundaries and need them as numbers.
    """

    segment: Tensor  # [B, N], -1 after the last document
    phase: Tensor  # [B, N]
    documents: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(
        cls, documents: Sequence[Sequence[int]], length: int | None = None, device: torch.device | str = "cpu"
    ) -> Self:
        """From the documents' lengths, row by row; ``length`` is the row length (default: of the fullest row).

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
        return self.phase.to(device)

    def to(self, device: torch.device) -> Self:
        if self.segment.device == self.phase.device == device:
            return self
        return self._replace(segment=self.segment.to(device), phase=self.phase.to(device))


class Slots(NamedTuple):
    """The general kind: order, segment and phase as tensors. Caches, graphs and images use it."""

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
        return self.phase.to(device)

    def to(self, device: torch.device) -> Self:
        return self if all(x.device == device for x in self) else type(self)(*(x.to(device) for x in self))


AnySlots = Range | Padded | Packed | Slots


def select(slots: AnySlots, index: Tensor) -> Slots:
    """The slots at these indices of every row, in this order.

    >>> select(Range(4, start=2), torch.tensor([3, 0])).order.tolist()
    [[5, 2]]
    """
    shape = (slots.rows, len(index))
    order, segment, phase = slots.at(torch.arange(slots.rows, device=index.device)[:, None], index[None])
    return Slots(order.expand(shape), segment.expand(shape), phase.expand(*shape, *phase.shape[2:]))


def first_order(slots: AnySlots) -> int:
    """The order of the first slot of the kinds whose orders are consecutive."""
    return slots.start if isinstance(slots, Range) else 0


class Pairs(NamedTuple):
    """The (query, key) pairs under consideration: masks and biases are functions of this and nothing else.

    Dense: ``batch`` [B,1,1,1], ``head`` [1,H,1,1], the positions of ``q`` [B|1,1,Q,1] and of ``k`` [B|1,1,1,K].
    Inside a FlexAttention kernel the same fields are scalars.
    """

    batch: Tensor
    head: Tensor
    q: TokenPosition
    k: TokenPosition


def position_at(slots: AnySlots, batch: Tensor, index: Tensor) -> TokenPosition:
    """The positions at ``index`` of the rows ``batch`` (slots shared by all rows have one row)."""
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
    q = _indices(queries.length, rows, device)[None, None, :, None]
    pieces = [_indices(keys.length, one, device) for one in (columns if isinstance(columns, tuple) else (columns,))]
    k = (torch.cat(pieces) if len(pieces) > 1 else pieces[0])[None, None, None, :]
    return Pairs(b, h, position_at(queries, b, q), position_at(keys, b, k))


def _indices(length: int, piece: slice, device: torch.device) -> Tensor:
    if piece.start is None or piece.stop is None:
        return torch.arange(length, device=device)[piece]
    return torch.arange(piece.start, min(piece.stop, length), piece.step or 1, device=device)


def table_at(table: Tensor, pairs: Pairs) -> Tensor:
    """A table [B|1, H|1, N, N] at the batch row, the head and the orders of each pair."""
    row = pairs.batch if table.shape[0] > 1 else torch.zeros_like(pairs.batch)
    head = pairs.head if table.shape[1] > 1 else torch.zeros_like(pairs.head)
    return table[row, head, pairs.q.order, pairs.k.order]


def valid(pairs: Pairs) -> Tensor:
    """Both slots hold a token of the same document. ANDed after the mask, so that ``~`` cannot show an empty slot."""
    return (pairs.q.segment == pairs.k.segment) & (pairs.q.segment > EMPTY)
