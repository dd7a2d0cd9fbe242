"""What decoding with a source has in common, whichever way the next token is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.generate.sampling import NEVER

if TYPE_CHECKING:
    from regard.data.translation.pairs import Specials

ROWS = 64  # rows whose exponentials are held at a time: what fits into a processor's cache is several times as fast


class Sourced(Protocol):
    """A model that writes token by token about a source; row b * beams + j of a step is the j-th text of source b."""

    def start(self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1) -> Any: ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class Hypothesis(NamedTuple):
    """One text for one source."""

    tokens: list[int]  # without the end mark
    score: float  # what it was ranked by: the log-probability over the length penalty
    logprob: float  # the model's own log-probability of the tokens and, if there is one, of the end mark
    ended: bool  # False: it was cut at the greatest length


class Rules(NamedTuple):
    """What may be written: from `least` to `most` tokens, the end mark counted in `most` only."""

    specials: Specials
    least: int
    most: int

    def apply(self, logits: Tensor, written: int) -> Tensor:
        """Logits [R, V], in place: padding and begin are never written, and the end not before its time."""
        barred = [self.specials.pad, self.specials.begin]
        barred += [self.specials.end] if written < self.least else []
        for token in barred:
            logits[:, token] = NEVER
        return logits

    def hypothesis(self, row: list[int], score: float, logprob: float) -> Hypothesis:
        """What stands in a row of tokens up to its end mark."""
        ended = bool(row) and row[-1] == self.specials.end
        return Hypothesis(row[:-1] if ended else row, score, logprob, ended)


def normaliser(logits: Tensor) -> Tensor:
    """logsumexp [R] of logits [R, V]."""
    top = logits.amax(-1, keepdim=True)
    pairs = zip(logits.split(ROWS), top.split(ROWS), strict=True)
    sums = torch.cat([(part - most).exp_().sum(-1) for part, most in pairs])
    return sums.log_().add_(top[:, 0])


def latest(logits: Tensor) -> Tensor:
    """The logits of a step's last place, [R, V], in float32 or better."""
    last = logits[:, -1]
    return last if last.dtype in (torch.float32, torch.float64) else last.float()
