"""A mask as disjoint parts, each with the regrouping of tokens under which its keys are adjacent.

``Window(64) | Strided(64)`` has no blocks to skip: some query of every block sees some key of every other. Its parts
have: the window is a band, and the rest is, among the tokens of one residue modulo 64, a short sequence by itself
(Child et al. 2019, sec. 4.2, compute it in the same way). Softmaxes over disjoint parts are merged exactly by their
log-sum-exp. A compiler can trace all of this, but no operator between masks: hence ``And``, ``Or`` and ``Not`` by name.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.attention.masks.mask import And, Mask, Not, Or
from regard.attention.masks.summary import StridePattern

NARROW = 128  # a mask that spans at most this many keys is not worth a regrouping on a CPU
MOST = 16  # alternatives of an expression that is multiplied out


class MaskPart(NamedTuple):
    mask: Mask
    pattern: StridePattern


def parts(mask: Mask, keys: int, narrow: int = NARROW, packed: bool = False) -> tuple[MaskPart, ...]:
    """Disjoint masks whose union is ``mask``, over ``keys`` keys; one alone if regrouping gains nothing.

    A mask that spans at most ``narrow`` keys is not regrouped. ``packed``: a key's index does not determine its phase.
    """
    divided: list[MaskPart] = []
    for alternative in alternatives(mask):
        pattern = alternative.stride_pattern()
        if span(alternative, keys) <= narrow or (packed and pattern.residues is not None):
            pattern = StridePattern(1)
        equal = [i for i, part in enumerate(divided) if part.pattern == pattern]
        if equal:
            divided[equal[0]] = MaskPart(Or(divided[equal[0]].mask, alternative), pattern)
        else:  # the part without regrouping comes first: it is the cheapest to exclude from the others
            divided.insert(0 if pattern.step == 1 else len(divided), MaskPart(alternative, pattern))
    if len(divided) == 1:
        return (MaskPart(mask, divided[0].pattern),)
    disjoint, taken = [divided[0]], divided[0].mask
    for part in divided[1:]:
        disjoint.append(MaskPart(And(part.mask, Not(taken)), part.pattern))
        taken = Or(taken, part.mask)
    return tuple(disjoint)


def alternatives(mask: Mask) -> list[Mask]:
    """Masks whose union is ``mask``: Or is split, And multiplied out."""
    if isinstance(mask, Or):
        return alternatives(mask.left) + alternatives(mask.right)
    if isinstance(mask, And):
        left, right = alternatives(mask.left), alternatives(mask.right)
        if 1 < len(left) * len(right) <= MOST:
            return [And(one, two) for one in left for two in right]
    return [mask]


def span(mask: Mask, keys: int) -> int:
    """The greatest number of keys between the first and the last that a query sees."""
    back, ahead = mask.reach()
    return keys if back is None or ahead is None else min(keys, back + ahead + 1)


def share(mask: Mask, keys: int) -> float:
    """The fraction of all keys that is read for a query after regrouping."""
    return sum(span(part.mask, keys) * part.pattern.share for part in parts(mask, keys)) / max(1, keys)
