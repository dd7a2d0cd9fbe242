"""Decoding equals the forward pass: ``step``, in pieces of any length, gives the logits of the whole sequence."""

import torch

from regard.models.base import LanguageModel
from regard.prove import Case, ClaimResult, ClaimSweep, ModelUnderTest, claim, not_applicable
from regard.prove.comparison import LargestGap
from regard.prove.rounding import compare_case

ROLLING = 400  # tokens: a rolling cache that is overwritten later than this is not tested


def step_case(subject: ModelUnderTest, case: Case) -> None:
    """Decoding in the pieces of the case gives the logits of the forward pass."""
    tokens = subject.tokens(case.rows, case.length, case.seed)
    what = f"decoded in pieces of {', '.join(map(str, case.pieces[:9]))}{' ...' * (len(case.pieces) > 9)}, and at once"
    compare_case(subject, case, lambda: subject.decode(tokens, list(case.pieces)), lambda: subject(tokens), what)


@claim(
    "step",
    "decoding in pieces of any length gives the logits of the forward pass",
    order=50,
    reorders_sums=True,
    sweep=ClaimSweep(step_case, pieces=0, lengths=False, rows=False),
)
@torch.no_grad()
def step(subject: ModelUnderTest) -> ClaimResult:
    if subject.stepper is None:
        return not_applicable("it has no start and step")
    if subject.not_steppable:
        return not_applicable(f"declared impossible by {', '.join(subject.not_steppable)}")
    if not subject.causal:
        return not_applicable("a bidirectional model cannot be decoded token by token")
    largest, n, longest = LargestGap(), subject.length, subject.length
    for pieces in ([n], [1] * n, [6, 5, n - 11], [1, n - 2, 1], [n // 2, *[1] * (n - n // 2)], [3, 1, 1, n - 5]):
        if min(pieces) > 0:
            _compare(subject, pieces, largest)
    if isinstance(subject.model, LanguageModel):
        longest = _rolling(subject, subject.model, largest)
        _ragged(subject, subject.model, largest)
        _last(subject, subject.model, largest)
        _compare(subject, [5, *[1] * (n - 5)], largest, fixed=True)
    if subject.seq2seq is not None:
        tokens, rows = subject.tokens(6), torch.arange(3, device=subject.device).repeat_interleave(2)
        decoded = subject.decode(tokens, [2, *[1] * (n - 2)], beams=2)
        largest.add(decoded, subject(tokens, rows), "two beams for each of three sources")
    return largest.result(f"{largest.count} ways to split up to {longest} tokens")


def _compare(subject: ModelUnderTest, pieces: list[int], largest: LargestGap, **settings: bool) -> None:
    tokens = subject.tokens(2, sum(pieces))
    first = ", ".join(map(str, pieces[:5])) + (" ..." if len(pieces) > 5 else "")
    case = "one token at a time" if set(pieces) == {1} else f"pieces of {first}"
    note = ", fixed buffers" if settings else ""
    largest.add(subject.decode(tokens, pieces, **settings), subject(tokens), case + note)


def _rolling(subject: ModelUnderTest, model: LanguageModel, largest: LargestGap) -> int:
    """Decode until a rolling cache was overwritten twice or, without one, a longer sequence; return its length."""
    indices = model.start(1, 10**4).cache_indices if model.limit is None else ()
    n = max([subject.long, *(size for index in indices if (size := 2 * index.size + 3) <= ROLLING)])
    if n > subject.length:
        for pieces in ([5, *[1] * (n - 5)], [n // 3, 7, n - n // 3 - 7]):
            _compare(subject, pieces, largest)
    return n


def _ragged(subject: ModelUnderTest, model: LanguageModel, largest: LargestGap) -> None:
    """Rows that consume different numbers of tokens in one step, or none."""
    n = subject.length
    tokens = subject.tokens(3, n)
    steps = [[4, 1, 6], [1, 3, 0], [n - 11, n - 11, n - 11]] if n > 11 else [[2, 1, 3], [1, 1, 0]]
    state, used, whole = model.start(3, n), [0, 0, 0], subject(tokens)
    for lengths in steps:
        piece = tokens.new_zeros(3, max(lengths))
        for row, (m, at) in enumerate(zip(lengths, used, strict=True)):
            piece[row, :m] = tokens[row, at : at + m]
        logits, state = model.step(piece, state, torch.tensor(lengths, device=tokens.device))
        for row, (m, at) in enumerate(zip(lengths, used, strict=True)):
            case = f"a step of {lengths} tokens in three rows that hold {used}, row {row}"
            largest.add(logits[row : row + 1, :m], whole[row : row + 1, at : at + m], case)
        used = [at + m for at, m in zip(used, lengths, strict=True)]


def _last(subject: ModelUnderTest, model: LanguageModel, largest: LargestGap) -> None:
    """Only the logits after the last token of each step."""
    tokens = subject.tokens(2)
    whole, state = subject(tokens), model.start(2, subject.length)
    half = subject.length // 2
    for piece, end in ((tokens[:, :half], half - 1), (tokens[:, half:], subject.length - 1)):
        logits, state = model.step(piece, state, last=True)
        largest.add(logits, whole[:, end : end + 1], f"only the last logits, at position {end}")
