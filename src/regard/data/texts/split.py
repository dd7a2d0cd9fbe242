"""Cutting a text into train | validation | test by position."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


@dataclass(frozen=True)
class TokenSpan:
    """Tokens `start` to `stop`, the latter excluded."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return self.stop - self.start

    @property
    def targets(self) -> int:
        """How many of them can be foretold from within the part: all but the first."""
        return max(self.size - 1, 0)


class Split(NamedTuple):
    """The parts of a text, in the order in which they stand in it."""

    train: TokenSpan
    validation: TokenSpan
    test: TokenSpan


def split(total: int, validation: float, test: float) -> Split:
    """The last share is `test`, the one before it `validation`, and what comes first is trained on.

    Shares are taken as the decimal numbers a person wrote, not as their nearest binary fractions: of
    100,000,000 tokens, 0.05 and 0.05 leave 90,000,000 and not one less.

    >>> split(100_000_000, 0.05, 0.05).test
    TokenSpan(start=95000000, stop=100000000)
    """
    last = exact(test)
    held_out = exact(validation) + last
    first, second = int(total * (1 - held_out)), int(total * (1 - last))
    return Split(TokenSpan(0, first), TokenSpan(first, second), TokenSpan(second, total))


def exact(share: float) -> Fraction:
    """The decimal number that a person wrote."""
    return Fraction(repr(float(share)))
