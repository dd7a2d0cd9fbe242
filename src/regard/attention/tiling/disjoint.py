"""A mask as disjoint parts, each with the regrouping of tokens under which its keys lie side by side.

``Window(64) | Strided(64)`` has no blocks to skip: some query of every block sees some key of every other. Taken apart
it has: the window is a band, and what remains is, among the tokens of one residue modulo 64, a short text of its own
(Child et al. 2019, sec. 4.2, compute it in the same way). Softmaxes over disjoint parts are merged exactly by their
log-sum-exp. A compiler follows all of this, but no operator between masks: hence ``And``, ``Or`` and ``Not`` by name.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.attention.masks.mask import And, Mask, Not, Or
from regard.attention.masks.summary import Comb

NARROW = 128  # a mask that spans no more than this many keys is not worth a regrouping on a CPU
MOST = 16  # alternatives of an expression that is multiplied out


class Part(NamedTuple):
    mask: Mask
    comb: Comb


def parts(mask: Mask, keys: int, narrow: int = NARROW, packed: bool = False) -> tuple[Part, ...]:
    """Disjoint masks that together are ``mask``, over ``keys`` keys; one alone when regrouping gains nothing.

    ``narrow``: what spans no more keys is left as it is. ``packed``: a key's place does not tell its phase.
    """
    found: list[Part] = []
    for one in alternatives(mask):
        comb = one.comb()
        if span(one, keys) <= narrow or (packed and comb.teeth is not None):
            comb = Comb(1)
        alike = [i for i, part in enumerate(found) if part.comb == comb]
        if alike:
            found[alike[0]] = Part(Or(found[alike[0]].mask, one), comb)
        elif comb.step == 1:  # what needs no regrouping first: it is cheapest to exclude
            found.insert(0, Part(one, comb))
        else:
            found.append(Part(one, comb))
    if len(found) == 1:
        return (Part(mask, found[0].comb),)
    apart, taken = [found[0]], found[0].mask
    for part in found[1:]:
        apart.append(Part(And(part.mask, Not(taken)), part.comb))
        taken = Or(taken, part.mask)
    return tuple(apart)


def alternatives(mask: Mask) -> list[Mask]:
    """Masks whose union is ``mask``: Or taken apart, And multiplied out."""
    if isinstance(mask, Or):
        return alternatives(mask.left) + alternatives(mask.right)
    if isinstance(mask, And):
        left, right = alternatives(mask.left), alternatives(mask.right)
        if 1 < len(left) * len(right) <= MOST:
            return [And(one, two) for one in left for two in right]
    return [mask]


def span(mask: Mask, keys: int) -> int:
    """How many keys lie between the first and the last that a query sees, at most."""
    back, ahead = mask.reach()
    return keys if back is None or ahead is None else min(keys, back + ahead + 1)


def share(mask: Mask, keys: int) -> float:
    """The part of all keys that is read for a query, after regrouping."""
    return sum(span(part.mask, keys) * part.comb.share for part in parts(mask, keys)) / max(1, keys)
