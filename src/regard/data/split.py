"""Splitting data into train | validation | test: a text by position, pairs by group."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


@dataclass(frozen=True)
class TokenSpan:
    """Tokens ``start`` to ``stop``, exclusive."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    @property
    def targets(self) -> int:
        """Number of tokens with context inside the span: all but the first."""
        return max(self.size - 1, 0)


class Split(NamedTuple):
    """The parts of a text, in order."""

    train: TokenSpan
    validation: TokenSpan
    test: TokenSpan


def split(total: int, validation: float, test: float) -> Split:
    """Training text first, then ``validation``, then ``test``.

    Fractions are taken as exact decimals, not as their nearest binary fractions: of 100,000,000 tokens, 0.05 and 0.05
    leave exactly 90,000,000.

    >>> split(100_000_000, 0.05, 0.05).test
    TokenSpan(start=95000000, stop=100000000)
    """
    last = exact(test)
    held_out = exact(validation) + last
    first, second = int(total * (1 - held_out)), int(total * (1 - last))
    return Split(TokenSpan(0, first), TokenSpan(first, second), TokenSpan(second, total))


def divide(groups: Sequence[str], validation: float, test: float) -> tuple[list[int], list[int], list[int]]:
    """The indices of the pairs in parts of about these fractions: whole groups, by a hash of their names.

    The split depends on the names alone, not on a seed. Test is filled first, then validation, each up to and including
    the group that reaches its fraction; the rest is for training.
    """
    sizes = Counter(groups)
    held_out, last = exact(validation) + exact(test), exact(test)
    part_of, before = {}, 0  # pairs in the previous groups
    for group in sorted(sizes, key=lambda name: (hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(), name)):
        held = before < held_out * len(groups)
        part_of[group] = 0 if not held else 2 if before < last * len(groups) else 1
        before += sizes[group]
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for number, group in enumerate(groups):
        parts[part_of[group]].append(number)
    return parts


def check_fractions(validation: float, test: float) -> None:
    """Refuse held-out fractions that leave nothing to train on."""
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise ValueError(f"{name} is {fraction}, but must be at least 0 and less than 1")
    if exact(validation) + exact(test) >= 1:
        raise ValueError(f"validation {validation} and test {test} together leave nothing to train on")


def exact(share: float) -> Fraction:
    """The decimal number as written."""
    return Fraction(repr(float(share)))
