"""Dividing pairs by the group they belong to, so that nothing of a chapter or component is on both sides of a split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.texts.split import exact


class Division(NamedTuple):
    """The numbers of the pairs in each part, in the order in which they came."""

    train: list[int]
    validation: list[int]
    test: list[int]


def divide(groups: Sequence[str], validation: float, test: float) -> Division:
    """Parts of about these shares: whole groups, in the order of a hash of their names.

    So it depends on the names alone and on no seed. The test part is filled first, then validation; each takes the
    group with which it reaches its share, and all the rest is trained on.
    """
    sizes = Counter(groups)
    held_out, last = exact(validation) + exact(test), exact(test)
    part_of, before = {}, 0  # pairs in the groups that stand before this one
    for group in sorted(sizes, key=lambda name: (hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(), name)):
        held = before < held_out * len(groups)
        part_of[group] = 0 if not held else 2 if before < last * len(groups) else 1
        before += sizes[group]
    division = Division([], [], [])
    for number, group in enumerate(groups):
        division[part_of[group]].append(number)
    return division
