"""Sampling: from logits to the next token, as small pieces that each do one thing to logits [B, V].

The order is fixed: `Repetition`, `Temperature`, `TopK`, `TopP`, `MinP`, each working on what the one before left. A
token that a piece rules out has the logit minus infinity. Everything is a tensor operation on the device of the logits,
so a step with its choice can become a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.config import option
from regard.generate.random import Draws

NEVER = float("-inf")


class Piece(Protocol):
    """One change to logits [B, V]; ``seen`` [B, V] says which tokens are in each row's text already."""

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Repetition:
    """Tokens of the text so far, prompt included, are made less likely (Keskar et al. 2019, section 4.1).

    The paper divides their logits by the penalty; a negative one is multiplied instead, since dividing would raise it.
    """

    penalty: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        lowered = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return torch.where(seen, lowered, logits)


@dataclass(frozen=True)
class Temperature:
    """Logits divided by the temperature: below 1 the likely become likelier."""

    temperature: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class TopK:
    """The k likeliest tokens stay, and those as likely as the last of them."""

    k: int

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        least = logits.topk(min(self.k, logits.shape[-1]), dim=-1).values[..., -1:]
        return logits.masked_fill(logits < least, NEVER)


@dataclass(frozen=True)
class TopP:
    """The smallest set of likeliest tokens whose probabilities reach p (nucleus: Holtzman et al. 2020, eq. 2).

    Of tokens that are equally likely the ones with smaller numbers come first.
    """

    p: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
        likely = ordered.softmax(-1)
        likelier = likely.cumsum(-1, dtype=exact(logits)) - likely  # the mass of the tokens before each one
        enough = (likelier >= self.p).index_fill_(-1, tokens.new_zeros(1), False)  # the likeliest always stays
        return logits.masked_fill(enough.scatter(-1, tokens, enough), NEVER)


@dataclass(frozen=True)
class MinP:
    """Tokens at least ``share`` times as likely as the likeliest stay (Nguyen et al. 2024, section 3)."""

    share: float

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        least = logits.amax(-1, keepdim=True) + math.log(self.share)
        return logits.masked_fill(logits < least, NEVER)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy: the likeliest token, the first of equals."""

    temperature: float = option(0.8, "below 1 bolder guesses are rarer; 0 always takes the likeliest token")
    top_k: int | None = option(None, "choose among the k likeliest tokens only")
    top_p: float = option(1.0, "choose among the likeliest tokens that together have this probability")
    min_p: float = option(0.0, "choose among tokens at least this many times as likely as the likeliest")
    repetition: float = option(1.0, "above 1 tokens of the text so far are made less likely")

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
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def remembers(self) -> bool:
        """Whether the choice depends on which tokens are in the text already."""
        return self.repetition != 1

    def pieces(self) -> tuple[Piece, ...]:
        """What is done to the logits, in this order; what would change nothing is left out."""
        first = [Repetition(self.repetition)] if self.remembers else []
        if self.greedy:
            return tuple(first)  # no later piece changes which token is the likeliest
        rest: list[Piece] = [Temperature(self.temperature)] if self.temperature != 1 else []
        rest += [TopK(self.top_k)] if self.top_k is not None else []
        rest += [TopP(self.top_p)] if self.top_p < 1 else []
        rest += [MinP(self.min_p)] if self.min_p > 0 else []
        return (*first, *rest)

    def shape(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Logits [B, V] after all pieces, in float32 or better: their softmax is what is drawn from."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        for piece in self.pieces():
            logits = piece(logits, seen)
        return logits

    def choose(self, logits: Tensor, draws: Draws) -> Tensor:
        """Logits [B, V] to tokens [B]; ``draws`` moves on in place. Nothing waits for the device."""
        shaped = self.shape(logits, draws.seen)
        tokens = shaped.argmax(-1) if self.greedy else inverse(shaped, draws.next())
        if self.remembers:
            draws.seen.scatter_(1, tokens[:, None], True)
        return tokens


def inverse(logits: Tensor, share: Tensor) -> Tensor:
    """The tokens [B] at ``share`` [B, 1], uniform in [0, 1), of the cumulative distributions of logits [B, V].

    One number a row decides, so that no row's draw depends on another row or on the size of the vocabulary.
    """
    below = logits.softmax(-1).cumsum(-1, dtype=exact(logits))
    # Always less than the whole mass, also after rounding: a token that was ruled out is never reached.
    return torch.searchsorted(below, share * below[:, -1:], right=True)[:, 0]


def exact(like: Tensor) -> torch.dtype:
    """The number format of long sums: float64, which Apple's GPUs do not have."""
    return torch.float32 if like.device.type == "mps" else torch.float64
