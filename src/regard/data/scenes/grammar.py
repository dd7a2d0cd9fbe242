"""The grammar of scenes: "two red 3s above a blue 7", its words, and the combinations that training never shows."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

COLORS = {"red": (255, 64, 64), "green": (64, 224, 64), "blue": (80, 112, 255), "yellow": (240, 224, 48)}
UNNAMED = ((64, 224, 224), (240, 64, 240), (240, 240, 240), (255, 144, 48), (160, 80, 255))  # far from all of these
NUMBERS = ("a", "two")
#: Relations of the first group to the second, and the same of the second to the first.
INVERSE = {"above": "below", "left of": "right of", "below": "above", "right of": "left of"}
DIGITS = 10
PAIRS = len(COLORS) * DIGITS  # a pair of color and digit is the number 10 * color + digit
HELD_OUT = tuple(DIGITS * color + (2 * color + shift) % DIGITS for color in range(len(COLORS)) for shift in (0, 5))
#: Token ids of captions. The first ends a caption and fills it up.
WORDS = ("", *NUMBERS, *COLORS, *map(str, range(DIGITS)), *(f"{n}s" for n in range(DIGITS)), *INVERSE)
LONGEST = 8  # tokens of a caption: two groups, their relation, and the end
_FORM = re.compile(rf"({'|'.join(NUMBERS)}) ({'|'.join(COLORS)}) (\d)(s?)")


class Group(NamedTuple):
    """One or two digits of the same kind."""

    number: int
    pair: int  # 10 * color + digit

    @property
    def color(self) -> int:
        """The number of the color."""
        return self.pair // DIGITS

    @property
    def digit(self) -> int:
        """The digit."""
        return self.pair % DIGITS

    def __str__(self) -> str:
        return f"{NUMBERS[self.number - 1]} {tuple(COLORS)[self.color]} {self.digit}{'s' * (self.number > 1)}"


class Caption(NamedTuple):
    """What a scene shows: a group, or a group and its relation to another."""

    first: Group
    relation: str | None = None
    second: Group | None = None

    @property
    def groups(self) -> list[Group]:
        """The groups, one or two."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def canonical(self) -> Caption:
        """The caption of the same scenes whose first group is above or left of the other."""
        if self.second is None or self.relation in ("above", "left of"):
            return self
        return self.inverse

    @property
    def inverse(self) -> Caption:
        """The caption of the same scenes that begins with the other group."""
        if self.second is None or self.relation is None:
            return self
        return Caption(self.second, INVERSE[self.relation], self.first)

    @property
    def held_out(self) -> bool:
        """Whether it has a pair of color and digit that training never shows."""
        return any(group.pair in HELD_OUT for group in self.groups)

    def __str__(self) -> str:
        return str(self.first) if self.second is None else f"{self.first} {self.relation} {self.second}"

    @property
    def tokens(self) -> list[int]:
        """The token ids, filled up to ``LONGEST``."""
        words = [word for group in self.groups for word in (*str(group).split(), self.relation)]
        ids = [WORDS.index(word) for word in words[: 3 + 4 * (len(self.groups) - 1)] if word is not None]
        return ids + [0] * (LONGEST - len(ids))


def parse(text: str) -> Caption:
    """The caption of a text; a ``UserError`` that says what a caption is.

    >>> str(parse("two red 3s below a blue 7").canonical)
    'a blue 7 above two red 3s'
    """
    names = "|".join(INVERSE)
    parts = re.split(rf" ({names}) ", " ".join(text.lower().split()))
    found = [_FORM.fullmatch(part) for part in parts[::2]]
    groups = [
        Group(NUMBERS.index(one[1]) + 1, DIGITS * tuple(COLORS).index(one[2]) + int(one[3]))
        for one in found
        if one is not None and (one[1] == "two") == bool(one[4])
    ]
    if len(groups) != len(found) or len(groups) > 2 or len({group.pair for group in groups}) < len(groups):
        raise UserError(
            f"{text!r} is no caption of a scene; write one or two different groups such as 'a red 3' or 'two blue 7s' "
            f"({', '.join(COLORS)}), with {', '.join(INVERSE)} between them"
        )
    return Caption(groups[0]) if len(groups) == 1 else Caption(groups[0], parts[1], groups[1])


def every_caption() -> list[Caption]:
    """All canonical captions, 12,560."""
    groups = [Group(number, pair) for number in (1, 2) for pair in range(PAIRS)]
    pairs = product(groups, ("above", "left of"), groups)
    return [*map(Caption, groups), *(Caption(*one) for one in pairs if one[0].pair != one[2].pair)]


@cache
def reworded(caption: Caption) -> list[Caption]:
    """The canonical captions in which one group has another number, color or digit; none has a held-out pair.

    >>> len(reworded(parse("a red 3")))  # another number, 2 colors and 8 digits that are not held out
    11
    """
    own, other = caption.groups[0], caption.groups[-1]
    if caption.second is None:
        return _known([Caption(group) for group in _changed(own)], caption)
    first = [Caption(group, caption.relation, other) for group in _changed(own)]
    return _known([*first, *(Caption(own, caption.relation, group) for group in _changed(other))], caption)


@cache
def rearranged(caption: Caption) -> list[Caption]:
    """The canonical captions with the same words in other places; none has a held-out pair.

    >>> [str(one) for one in rearranged(parse("a red 3 above a red 7"))][:2]
    ['a red 7 above a red 3', 'a red 3 left of a red 7']
    """
    if caption.second is None:
        return []
    own, other = caption.groups
    found = [Caption(*ends) for axis in ("above", "left of") for ends in ((own, axis, other), (other, axis, own))]
    mixed = DIGITS * own.color + other.digit, DIGITS * other.color + own.digit
    for pairs in (mixed, mixed[::-1], (own.pair, other.pair)):
        for numbers in ((own.number, other.number), (other.number, own.number)):
            groups = [Group(*one) for one in zip(numbers, pairs, strict=True)]
            found.append(Caption(groups[0], caption.relation, groups[1]))
    return _known(found, caption)


def _known(found: list[Caption], caption: Caption) -> list[Caption]:
    """Those that are captions, differ from ``caption``, and have no held-out pair."""
    kept = [one for one in dict.fromkeys(found) if one != caption and not one.held_out]
    return [one for one in kept if one.second is None or one.first.pair != one.second.pair]


def _changed(group: Group) -> list[Group]:
    """The groups of another number, color or digit."""
    pairs = [pair for pair in range(PAIRS) if (pair // DIGITS == group.color) != (pair % DIGITS == group.digit)]
    return [group._replace(number=3 - group.number), *(group._replace(pair=pair) for pair in pairs)]


def caption_of(tokens: list[int]) -> str:
    """The text of token ids, up to the end; other ids than those of words are shown as ?."""
    words = [WORDS[token] if 0 <= token < len(WORDS) else "?" for token in tokens]
    return " ".join(words[: words.index("")] if "" in words else words)


def random_caption(random: NDArray[np.float64], held_out: bool) -> Caption:
    """A canonical caption from six numbers in [0, 1): with or without a held-out pair of color and digit."""
    usual = [pair for pair in range(PAIRS) if pair not in HELD_OUT]
    first = _pick(HELD_OUT if held_out else usual, random[0])
    second = _pick([pair for pair in (range(PAIRS) if held_out else usual) if pair != first], random[1])
    one, two = Group(1 + int(random[2] < 0.4), first), Group(1 + int(random[3] < 0.4), second)
    if random[4] < 0.25:
        return Caption(one)
    made = Caption(one, _pick(tuple(INVERSE), random[5]), two)
    return made.canonical


def _pick(choices, number: float):
    return choices[int(number * len(choices))]
