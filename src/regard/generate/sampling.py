"""Sampling parameters, and the logits processors that they stand for.

Processors run in a fixed order, each on the logits [B, V] of the previous one: `RepetitionPenalty`,
`TemperatureScaling`, `TopKFilter`, `TopPFilter`, `MinPFilter`. A filter sets the logits of excluded tokens to minus
infinity. All of them are tensor operations on the device of the logits, so that sampling fits into a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import option
from regard.generate.philox import SamplerState

NEVER = float("-inf")

#: Changes logits [B, V]; ``seen`` [B, V] is True for the tokens that are in a row's text already.
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Makes the tokens of the text so far, prompt included, less likely (Keskar et al. 2019, section 4.1).

    The paper divides their logits by the penalty; a negative one is multiplied instead, since dividing would raise it.
    """

    penalty: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        lowered = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return torch.where(seen, lowered, logits)


@dataclass(frozen=True)
class TemperatureScaling:
    """Divides logits by the temperature: below 1, likely tokens become likelier."""

    temperature: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class TopKFilter:
    """Keeps the k likeliest tokens, and those as likely as the last of them."""

    k: int

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        least = logits.topk(min(self.k, logits.shape[-1]), dim=-1).values[..., -1:]
        return logits.masked_fill(logits < least, NEVER)


@dataclass(frozen=True)
class TopPFilter:
    """Keeps the smallest set of likeliest tokens whose probabilities reach p (nucleus: Holtzman et al. 2020, eq. 2).

    Of equally likely tokens the ones with smaller ids come first.
    """

    p: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
        likely = ordered.softmax(-1)
        likelier = likely.cumsum(-1, dtype=sum_dtype(logits)) - likely  # the mass of the tokens before each one
        enough = (likelier >= self.p).index_fill_(-1, tokens.new_zeros(1), False)  # the likeliest always stays
        return logits.masked_fill(enough.scatter(-1, tokens, enough), NEVER)


@dataclass(frozen=True)
class MinPFilter:
    """Keeps tokens at least ``share`` times as likely as the likeliest (Nguyen et al. 2024, section 3)."""

    share: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        least = logits.amax(-1, keepdim=True) + math.log(self.share)
        return logits.masked_fill(logits < least, NEVER)


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy decoding: the likeliest token, the first of equals."""

    temperature: float = option(0.8, "below 1: likely tokens become likelier; 0: greedy, always the likeliest token")
    top_k: int | None = option(None, "sample from the k likeliest tokens only")
    top_p: float = option(1.0, "sample from the likeliest tokens that together have this probability")
    min_p: float = option(0.0, "sample from tokens at least this many times as likely as the likeliest")
    repetition: float = option(1.0, "repetition penalty: above 1, tokens of the text so far become less likely")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be zero or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be at least 0 and below 1, not {self.min_p}")
        if not 0 < self.repetition < math.inf:
            raise ValueError(f"repetition must be above 0, not {self.repetition}; 1 changes nothing")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken and no random number is used."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on the tokens of the text so far."""
        return self.repetition != 1

    def processors(self) -> tuple[LogitsProcessor, ...]:
        """The logits processors in order, without those that would change nothing."""
        first = [RepetitionPenalty(self.repetition)] if self.penalizes else []
        if self.greedy:
            return tuple(first)  # no later one changes which token is the likeliest
        rest: list[LogitsProcessor] = [TemperatureScaling(self.temperature)] if self.temperature != 1 else []
        rest += [TopKFilter(self.top_k)] if self.top_k is not None else []
        rest += [TopPFilter(self.top_p)] if self.top_p < 1 else []
        rest += [MinPFilter(self.min_p)] if self.min_p > 0 else []
        return (*first, *rest)

    def process(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Logits [B, V] after all processors, in float32 or better: their softmax is the sampling distribution."""
        logits = in_float32(logits)
        for processor in self.processors():
            logits = processor(logits, seen)
        return logits

    def sample(self, logits: Tensor, state: SamplerState) -> Tensor:
        """Logits [B, V] to tokens [B]; updates ``state`` in place. Does not synchronize with the host."""
        processed = self.process(logits, state.seen)
        tokens = processed.argmax(-1) if self.greedy else inverse_cdf(processed, state.next())
        if self.penalizes:
            state.seen.scatter_(1, tokens[:, None], True)
        return tokens


def inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [B] at ``uniforms`` [B, 1] of the cumulative distributions of logits [B, V].

    One number per row decides, so that no row depends on another row or on the size of the vocabulary.
    """
    below = logits.softmax(-1).cumsum(-1, dtype=sum_dtype(logits))
    # Always less than the whole mass, also after rounding: an excluded token is never reached.
    return torch.searchsorted(below, uniforms * below[:, -1:], right=True)[:, 0]


def in_float32(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def sum_dtype(like: Tensor) -> torch.dtype:
    """The type of cumulative sums: float64, which MPS lacks."""
    return torch.float32 if like.device.type == "mps" else torch.float64
