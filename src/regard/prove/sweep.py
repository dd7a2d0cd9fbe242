"""Sweeps: a claim is tested on many cases, and the first one that fails is shrunk to a smallest one.

Faults may show in one number format, beyond the trained context, in batches or pieces of certain sizes only. So the
cases lie around every power of two and the context; the rest of a case is drawn, as in property-based testing.
"""

import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

import torch

from regard.errors import UserError
from regard.models.base import Model
from regard.prove.model_under_test import ModelUnderTest
from regard.prove.registry import FAILURES, Case, ClaimFails, ClaimSweep, NotFinite, first_line
from regard.prove.rounding import FORMATS, REFERENCE, FormatProbes, number_format


class Limits(NamedTuple):
    """The size of a sweep."""

    longest: int  # tokens
    rows: tuple[int, ...]
    changes: int  # cases per length
    mixed: int  # cases per number format
    drawn: int  # ways to split a row into pieces, beside equal ones
    seconds: float  # of CPU time, after which the sweep of a claim ends
    shrinks: int = 80  # cases that are tried to shrink a failing one


LIMITS = {
    "quick": Limits(129, (2, 3, 4, 5, 7, 8, 9, 16, 17, 33), 1, 2, 6, 10.0),
    "full": Limits(1025, (*range(1, 18), 31, 32, 33, 63, 64, 65, 100, 128, 129), 4, 16, 60, 120.0),
}
SMALLEST = 6  # tokens of the rows in large batches


class Swept(NamedTuple):
    """What a sweep found."""

    evidence: str
    failing: Case | None = None


def lengths(subject: ModelUnderTest) -> list[int]:
    """Lengths around the powers of two and the context, up to twice the context or the model's own limit."""
    model, longest = subject.model, LIMITS[subject.effort].longest
    context = subject.length if model is None else model.config.context
    marks = [*(2**k for k in range(longest.bit_length()) if 2**k <= longest), context, 2 * context, subject.length]
    limit = 2 * context + longest if model is None or model.limit is None else model.limit
    if subject.seq2seq is not None:
        limit = min(limit, context)
    around = (0, 1) if subject.effort == "quick" else (-1, 0, 1)
    return sorted({mark + d for mark in marks for d in around if 1 <= mark + d <= limit})


def cases(subject: ModelUnderTest, sweep: ClaimSweep) -> list[Case]:
    """The cases of a sweep, small ones first."""
    limits, draw, sizes = LIMITS[subject.effort], random.Random(subject.seed), lengths(subject)
    own, few = _own_format(subject), cycle((2, 1, 3))
    shapes = [(own, next(few), n) for n in sizes for _ in range(limits.changes) if sweep.lengths]
    shapes += [(own, rows, min(SMALLEST, subject.length)) for rows in limits.rows if sweep.rows]
    others = [name for name in FORMATS if name != own] if subject.modules else []
    near = [n for n in sizes if 4 <= n <= max(subject.length, 65)] or sizes
    for name in others:
        shapes += [(name, next(few), n) for n in (subject.length, *draw.choices(near, k=limits.mixed - 1))]
    found = [
        Case(name, rows, pieces, draw.randrange(1, 10**6))
        for name, rows, n in shapes
        for pieces in _pieces(sweep, n, draw)
    ]
    if not sweep.pieces:
        found += _splits(subject, draw, own, limits)
    return sorted(dict.fromkeys(found), key=lambda case: case.rows * case.length)


def _own_format(subject: ModelUnderTest) -> str:
    return next((name for name, form in FORMATS.items() if form.dtype == subject.dtype), "float32")


def _pieces(sweep: ClaimSweep, n: int, draw: random.Random) -> Iterator[tuple[int, ...]]:
    """One way to split ``n`` tokens into as many pieces as the sweep needs; none if there are too few tokens."""
    if sweep.pieces == 1:
        yield (n,)
    elif n > 1:
        edges = [p for k in range(n.bit_length()) for p in (2**k - 1, 2**k) if 0 < p < n]
        first = draw.choice([n - 1, draw.randrange(1, n), draw.choice(edges or [1])])
        yield (first, n - first)


def _splits(subject: ModelUnderTest, draw: random.Random, own: str, limits: Limits) -> Iterator[Case]:
    """Equal pieces of every size up to 17, and drawn ones."""
    n = subject.length if subject.effort == "quick" else min(subject.length + 9, max(lengths(subject)))
    for size in range(2, min(17, n) + 1):
        yield Case(own, draw.choice((1, 2, 3)), (*[size] * (n // size), *[n % size] * (n % size > 0)))
    for _ in range(limits.drawn):
        pieces: list[int] = []
        while (left := n - sum(pieces)) > 0:
            pieces.append(min(left, draw.choice((1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17))))
        yield Case(own, draw.choice((1, 2, 3, 5)), tuple(pieces), draw.randrange(1, 10**6))


def run_sweep(subject: ModelUnderTest, sweep: ClaimSweep, probes: FormatProbes) -> Swept:
    """Test the cases until one fails or the time is over; shrink the failing one."""
    chosen, refused = cases(subject, sweep), dict[str, str]()
    ends, done, limit = time.process_time() + LIMITS[subject.effort].seconds, list[Case](), 10**9
    for case in chosen:
        if time.process_time() > ends:
            break
        if case.format not in refused and (reason := probes.refusal(FORMATS[case.format])):
            refused[case.format] = reason
        if case.format in refused or case.length >= limit:
            continue
        try:
            found = failure(subject, sweep, case)
        except NotFinite:
            own = case._replace(format=_own_format(subject))
            refused[case.format] = f"values are not finite; {own.format} was tested instead"
            case, found = own, _silent_failure(subject, sweep, own)
        except FAILURES as error:  # a format or a length that the model does not take
            if case.length > subject.length and not isinstance(subject.forward, Model):
                limit = case.length
            elif case.format != _own_format(subject):
                refused[case.format] = first_line(error)
            else:
                found = f"it raised {first_line(error)}"
                return Swept(f"{found}; the failing case: {case}", case)
            continue
        if found is not None:
            smallest, found = shrink(case, found, lambda one: _silent_failure(subject, sweep, one), subject)
            return Swept(f"{found}; the smallest failing case: {smallest}", smallest)
        done.append(case)
    return Swept(_evidence(chosen, done, refused, limit))


def _evidence(chosen: list[Case], done: list[Case], refused: dict[str, str], limit: int) -> str:
    if not done:
        return "no more cases can be tested"
    formats = len({case.format for case in done})
    rows, tokens = max(case.rows for case in done), max(case.length for case in done)
    text = f"{len(done)} more cases in {formats} number formats, up to {rows} rows and {tokens} tokens"
    text += "".join(f"; {name} refused: {reason[:90]}" for name, reason in refused.items())
    text += f"; refuses {limit} tokens" if limit < 10**9 else ""
    skipped = sum(case.format not in refused and case.length < limit for case in chosen) - len(done)
    return text + (f"; the time was over before {skipped} more" if skipped > 0 else "")


@torch.no_grad()
def failure(subject: ModelUnderTest, sweep: ClaimSweep, case: Case) -> str | None:
    """Why a case fails; None if it does not. ``NotFinite`` if it fails so in the reference format alone."""
    torch.manual_seed(case.seed)
    try:
        with number_format(subject, FORMATS[case.format]):
            sweep.test(subject, case)
    except ClaimFails as found:
        if isinstance(found, NotFinite) and case.format == REFERENCE != _own_format(subject):
            raise
        return str(found)
    except UserError:  # a module refuses this use
        return None
    return None


def _silent_failure(subject: ModelUnderTest, sweep: ClaimSweep, case: Case) -> str | None:
    try:
        return failure(subject, sweep, case)
    except (NotFinite, *FAILURES):
        return None


def shrink(case: Case, found: str, test: Callable[[Case], str | None], subject: ModelUnderTest) -> tuple[Case, str]:
    """A smallest case that still fails, and why: nothing of it can be made smaller alone."""
    tries, shrunk = LIMITS[subject.effort].shrinks, True
    while shrunk and tries > 0:
        shrunk = False
        for smaller in _smaller(case, _own_format(subject)):
            tries -= 1
            if tries >= 0 and (again := test(smaller)) is not None:
                case, found, shrunk = smaller, again, True
                break
    return case, found


def _smaller(case: Case, own: str) -> Iterator[Case]:
    """Simpler cases, those that save most first."""
    if case.format != own:
        yield case._replace(format=own)
    for rows in dict.fromkeys((1, case.rows // 2, case.rows - 1)):
        if 1 <= rows < case.rows:
            yield case._replace(rows=rows)
    pieces = case.pieces
    for kept in (pieces[: len(pieces) // 2], pieces[:-1], pieces[1:]) if len(pieces) > 2 else ():
        yield case._replace(pieces=kept)
    for i, piece in enumerate(pieces):
        for size in dict.fromkeys((1, piece // 2, piece - 1)):
            if 1 <= size < piece:
                yield case._replace(pieces=(*pieces[:i], size, *pieces[i + 1 :]))
