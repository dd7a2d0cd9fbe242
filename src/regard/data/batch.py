"""The batches that tasks and models consume."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from regard.attention import AnySlots

IGNORE_INDEX = -1  # a target with this value does not count: padding, or a prompt that is not to be learned


class Specials(NamedTuple):
    """Token ids after the tokenizer's own, for sequence-to-sequence data."""

    pad: int
    begin: int
    end: int

    @classmethod
    def after(cls, size: int) -> Specials:
        """The special tokens for a tokenizer of ``size`` tokens.

        >>> Specials.after(256)
        Specials(pad=256, begin=257, end=258)
        """
        return cls(size, size + 1, size + 2)


class TextBatch(NamedTuple):
    """Windows of text, and the next token of every position."""

    inputs: Tensor  # [B, N] int64
    targets: Tensor  # [B, N] int64; IGNORE_INDEX: does not count
    #: Padding or packing; None: unpadded rows. With consecutive order, None: rows that continue the previous batch.
    slots: AnySlots | None = None


class PairBatch(NamedTuple):
    """Sentences and their translations. Padding comes last in a row, where a causal decoder does not see it."""

    source: Tensor  # [B, S] int64; each row ends with the end token, then padding
    source_lengths: Tensor  # [B] int64, the end token included
    inputs: Tensor  # [B, T] int64: the begin token, then the translation
    targets: Tensor  # [B, T] int64: the translation, then the end token; IGNORE_INDEX: does not count


#: What a task of this package takes; parts from outside may define others.
Batch = TextBatch | PairBatch
