"""Splitting pairs by group, so that no chapter or component is in two parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.texts.split import exact


class Division(NamedTuple):
    """The indices of the pairs in each part, in order."""

    train: list[int]
    validation: list[int]
    test: list[int]


def divide(groups: Sequence[str], validation: float, test: float) -> Division:
    """Parts of about these fractions: whole groups, in the order of a hash of their names.

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
    division = Division([], [], [])
    for number, group in enumerate(groups):
        division[part_of[group]].append(number)
    return division
