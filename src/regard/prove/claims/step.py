"""Decoding gives what reading gives: ``step``, in whatever pieces, equals the whole forward pass."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from regard.prove.differ import Worst
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "start and step, whatever the pieces, give the logits of the whole forward pass"
ROLLING = 400  # tokens: a buffer that rolls later than this is not filled


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    if subject.stepper is None:
        return unasked("it has no start and step to decode with")
    if declared := subject.named("steppable"):
        return unasked(f"declared impossible by {', '.join(declared)}")
    if not subject.causal:
        return unasked("a model that sees both ways cannot be read token by token")
    worst, n = Worst(), subject.length
    cuts = [[n], [1] * n, [6, 5, n - 11], [1, n - 2, 1], [n // 2, *[1] * (n - n // 2)], [3, 1, 1, n - 5]]
    for pieces in cuts:
        if min(pieces) < 1:
            continue
        _cut(subject, pieces, worst)
    rolled = _rolling(subject, worst)
    takes = inspect.signature(subject.stepper.step).parameters
    if "lengths" in takes:
        _ragged(subject, worst)
    if "last" in takes:
        _last(subject, worst)
    if "fixed" in inspect.signature(subject.stepper.start).parameters:
        _cut(subject, [5, *[1] * (n - 5)], worst, fixed=True)
    if subject.takes_source:
        _beams(subject, worst)
    if worst.found:
        return fails(worst.found)
    return holds(f"{worst.count} ways to cut up to {max(n, rolled)} tokens: at most {worst.size:.1g} apart")


def _short(pieces: list[int]) -> str:
    return (
        "one token at a time"
        if set(pieces) == {1}
        else f"pieces of {', '.join(map(str, pieces[:5]))}" + (" ..." if len(pieces) > 5 else "")
    )


def _taken(subject: Subject, tokens: Tensor, pieces: list[int], capacity: int, fixed: bool = False) -> Tensor:
    settings = {"fixed": True} if fixed else {}
    state, found = subject.start(len(tokens), capacity, **settings), []
    for piece in tokens.split(pieces, dim=1):
        logits, state = subject.stepper.step(piece, state)
        found.append(logits)
    return torch.cat(found, dim=1)


def _cut(subject: Subject, pieces: list[int], worst: Worst, fixed: bool = False) -> None:
    tokens = subject.tokens(2, sum(pieces))
    whole, case = subject(tokens), _short(pieces) + (", fixed buffers" if fixed else "")
    worst.add(_taken(subject, tokens, pieces, sum(pieces), fixed), whole, case)


def _rolling(subject: Subject, worst: Worst) -> int:
    """As far as a buffer needs to be overwritten twice, where one rolls; or else a longer text."""
    n = subject.long
    memories = subject.start(1, n).caches if subject.takes_slots else ()
    limit = getattr(getattr(subject.model, "position", None), "limit", None)
    if subject.takes_slots and limit is None and memories:
        room = max(memory.size for memory in subject.start(1, 10**4).caches)
        n = max(n, 2 * room + 3) if 2 * room + 3 <= ROLLING else n
    if n > subject.length:
        for pieces in ([5, *[1] * (n - 5)], [n // 3, 7, n - n // 3 - 7]):
            _cut(subject, pieces, worst)
    return n


def _ragged(subject: Subject, worst: Worst) -> None:
    """Rows that take in differently many tokens at once, or none."""
    n = subject.length
    tokens = subject.tokens(3, n)
    shares = [[4, 1, 6], [1, 3, 0], [n - 11, n - 11, n - 11]] if n > 11 else [[2, 1, 3], [1, 1, 0]]
    state, used = subject.start(3, n), [0, 0, 0]
    whole = subject(tokens)
    for share in shares:
        width = max(share)
        piece = tokens.new_zeros(3, width)
        for row, (m, at) in enumerate(zip(share, used, strict=True)):
            piece[row, :m] = tokens[row, at : at + m]
        logits, state = subject.stepper.step(piece, state, torch.tensor(share, device=tokens.device))
        for row, (m, at) in enumerate(zip(share, used, strict=True)):
            case = f"a step of {share} tokens in three rows that hold {used}, row {row}"
            worst.add(logits[row : row + 1, :m], whole[row : row + 1, at : at + m], case)
        used = [at + m for at, m in zip(used, share, strict=True)]


def _last(subject: Subject, worst: Worst) -> None:
    tokens = subject.tokens(2)
    whole, state = subject(tokens), subject.start(2, subject.length)
    half = subject.length // 2
    for piece, end in ((tokens[:, :half], half - 1), (tokens[:, half:], subject.length - 1)):
        logits, state = subject.stepper.step(piece, state, last=True)
        worst.add(logits, whole[:, end : end + 1], f"only the last logits, at place {end}")


def _beams(subject: Subject, worst: Worst) -> None:
    """Several rows that translate one source."""
    tokens, n = subject.tokens(6), subject.length
    rows = torch.arange(3, device=tokens.device).repeat_interleave(2)
    whole, state, found = subject(tokens, rows), subject.start(3, n, beams=2), []
    for piece in tokens.split([2, *[1] * (n - 2)], dim=1):
        logits, state = subject.stepper.step(piece, state)
        found.append(logits)
    worst.add(torch.cat(found, dim=1), whole, "two beams for each of three sources")
