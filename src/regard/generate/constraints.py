"""What a decoded sequence may contain and where it ends, and the hypothesis that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.generate.sampling import NEVER

if TYPE_CHECKING:
    from regard.data.translation.pairs import Specials
    from regard.generate.stops import StopCondition

ROWS = 64  # rows whose exponentials are computed at a time: what fits into a processor's cache is several times faster


class Hypothesis(NamedTuple):
    """One decoded sequence."""

    tokens: list[int]  # without the end token
    score: float  # what hypotheses are ranked by: the log-probability over the length penalty
    logprob: float  # the log-probability of the tokens and, if there is one, of the end token
    ended: bool  # False: cut off at the maximum length


class OutputConstraints(NamedTuple):
    """Limits of a decoded sequence. The end token counts towards ``max_length`` only."""

    max_length: int
    min_length: int = 0
    begin: int = 0  # the first input of a sequence-to-sequence model's decoder
    end: int | None = None  # the token that ends a sequence
    forbidden: tuple[int, ...] = ()  # tokens that are never decoded
    stop: StopCondition | None = None  # a sequence also ends with the token that completes a stop string

    @classmethod
    def of(cls, specials: Specials, min_length: int, max_length: int) -> OutputConstraints:
        """Those of a translation: no padding or begin token, and it ends with the end token."""
        return cls(max_length, min_length, specials.begin, specials.end, (specials.pad, specials.begin))

    def may_end(self, position: int) -> bool:
        """Whether the token number ``position`` may be the last one, before the maximum length."""
        return self.stop is not None or (self.end is not None and position >= self.min_length)

    def mask(self, logits: Tensor, position: int) -> Tensor:
        """Exclude the tokens that may not be at ``position`` from logits [R, V], in place."""
        early = () if self.end is None or position >= self.min_length else (self.end,)
        for token in (*self.forbidden, *early):
            logits[:, token] = NEVER
        return logits

    def hypothesis(self, tokens: list[int], score: float, logprob: float) -> Hypothesis:
        """The hypothesis of a row of tokens, which may end with the end token."""
        if self.end is not None and tokens and tokens[-1] == self.end:
            return Hypothesis(tokens[:-1], score, logprob, True)
        return Hypothesis(tokens, score, logprob, self.stop is not None and self.stop(tokens))


def logsumexp(logits: Tensor) -> Tensor:
    """logsumexp [R] of logits [R, V], several times faster on a CPU than PyTorch's."""
    top = logits.amax(-1, keepdim=True)
    pairs = zip(logits.split(ROWS), top.split(ROWS), strict=True)
    sums = torch.cat([(part - most).exp_().sum(-1) for part, most in pairs])
    return sums.log_().add_(top[:, 0])
