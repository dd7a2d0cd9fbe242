"""What a step of training on text gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from regard.attention import AnySlots

SKIP = -1  # a target that is not counted


class TextBatch(NamedTuple):
    """Windows of text and, for every place, the token that follows it."""

    inputs: Tensor  # [B, N] int64
    targets: Tensor  # [B, N] int64; -1 = do not count
    slots: AnySlots | None = None  # None: plain rows; in consecutive order, rows that go on from the batch before


class PairBatch(NamedTuple):
    """Sentences and their translations. Padding stands last in a row, so a causal decoder needs no slots for it."""

    source: Tensor  # [B, S] int64; each row ends with the end mark, then padding
    source_lengths: Tensor  # [B] int64, the end mark included
    inputs: Tensor  # [B, T] int64: the begin mark, then the translation
    targets: Tensor  # [B, T] int64: the translation, then the end mark; -1 = do not count
