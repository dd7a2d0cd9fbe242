"""What a decoded sequence may contain and where it ends, and the hypothesis that it becomes.

Stop strings are found in the text and not in its tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from regard.data import Specials, Tokenizer
from regard.generate.sampling import NEVER

ROWS = 64  # rows whose exponentials are computed at a time: what fits into a processor's cache is several times faster


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may be the beginning of one.

    The first string is the one that ends first; of those that end together, the one that begins first. So the cut does
    not depend on the pieces in which the text arrives.

    >>> stops = StopStrings(["END"])
    >>> stops.feed("the E"), stops.feed("x"), stops.feed("it E"), stops.feed("ND of"), stops.found
    ('the ', 'Ex', 'it ', '', 'END')
    """

    def __init__(self, strings: Sequence[str]):
        if not all(strings):
            raise ValueError("a stop string is empty")
        self.strings = tuple(strings)
        self.found: str | None = None
        self._held = ""

    def feed(self, text: str) -> str:
        """Append text; return the part, not returned before, that is certain to precede any stop string."""
        if self.found is not None or not text:
            return ""
        text = self._held + text
        ends = [(at + len(s), at, s) for s in self.strings if (at := text.find(s)) >= 0]
        if ends:
            _, cut, self.found = min(ends)
            self._held = ""
        else:
            cut = len(text) - max((_overlap(text, s) for s in self.strings), default=0)
            self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        """The text that was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held


class StopCondition:
    """Whether the latest token of a sequence completes a stop string; it depends on the ``window`` latest.

    Every token stands for at least one byte, so a string of n bytes is within the latest n tokens.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]):
        self._tokenizer, self._strings = tokenizer, [string.encode() for string in strings]
        self.window = max(map(len, self._strings))

    def __call__(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode_bytes(tokens[-self.window :])
        return any(string in text for string in self._strings)


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
    prefix: tuple[int, ...] = (0,)  # what a sequence-to-sequence model's decoder reads first
    end: int | None = None  # the token that ends a sequence
    forbidden: tuple[int, ...] = ()  # tokens that are never decoded
    forbidden_first: tuple[int, ...] = ()  # tokens that are not the first
    stop: StopCondition | None = None  # a sequence also ends with the token that completes a stop string

    @classmethod
    def of(cls, specials: Specials, min_length: int, max_length: int) -> Self:
        """Those of a translation: no padding or begin token, and it ends with the end token.

        In BART the end token begins a text too.
        """
        forbidden = tuple(token for token in (specials.pad, specials.begin) if token != specials.end)
        return cls(max_length, min_length, (specials.begin,), specials.end, forbidden)

    def may_end(self, position: int) -> bool:
        """Whether the token number ``position`` may be the last one, before the maximum length."""
        return self.stop is not None or (self.end is not None and position >= self.min_length)

    def mask(self, logits: Tensor, position: int) -> Tensor:
        """Exclude the tokens that may not be at ``position`` from logits [R, V], in place."""
        early = () if self.end is None or position >= self.min_length else (self.end,)
        early += () if position else self.forbidden_first
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


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` begin ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
