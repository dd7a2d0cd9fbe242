"""Sampling: its parameters, the logits processors that they stand for, and its random numbers.

Processors run in a fixed order, each on the logits [B, V] of the previous one: `penalize_repetition`, the temperature,
`top_k_filter`, `top_p_filter`, `min_p_filter`. A filter sets the logits of excluded tokens to minus infinity. All of
them are tensor operations on the device of the logits, so that sampling fits into a CUDA graph.

The random numbers are a function of (seed, stream, position) alone: Philox 4x64 (Salmon et al. 2011) is keyed with the
seed and the number of the stream; its p-th number decides the p-th token. So a sampled text is the same alone and in
any batch, on every device. NumPy keeps the raw numbers of its bit generators the same from release to release.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from regard.config import option

NEVER = float("-inf")
BLOCK = 256  # positions whose random numbers are copied to the device together


class SamplerState(NamedTuple):
    """The tensors that sampling reads and updates in place, at fixed addresses on the device."""

    uniforms: Tensor  # [B, BLOCK], numbers for the next positions, uniform in [0, 1)
    position: Tensor  # [1], the column of the next number; after the last column comes the first
    seen: Tensor  # [B, V], whether a token is in a row's text; [B, 0] where no repetition penalty needs it

    @classmethod
    def start(cls, batch: int, vocabulary: int, device: torch.device, position: int = 0) -> Self:
        """All zeros."""
        uniforms = torch.zeros(batch, BLOCK, dtype=sum_dtype(device), device=device)
        seen = torch.zeros(batch, vocabulary, dtype=torch.bool, device=device)
        return cls(uniforms, torch.full((1,), position % BLOCK, device=device), seen)

    def next(self) -> Tensor:
        """The numbers of the next position, [B, 1]."""
        numbers = self.uniforms.index_select(1, self.position)
        self.position.add_(1).remainder_(BLOCK)
        return numbers


class PhiloxStreams:
    """The numbers of one stream per row, block after block; the first block contains ``position``."""

    def __init__(self, seed: int, streams: Sequence[int], position: int = 0):
        self._seed, self._generators = seed % 2**64, []
        for stream in streams:
            generator = self._generator(stream)
            generator.random_raw(position // BLOCK * BLOCK, output=False)
            self._generators.append(generator)

    def _generator(self, stream: int) -> np.random.Philox:
        return np.random.Philox(key=np.array([self._seed, stream % 2**64], np.uint64))

    def fill(self, state: SamplerState) -> None:
        """Write the next block into ``state.uniforms``."""
        raw = np.stack([generator.random_raw(BLOCK) for generator in self._generators])
        state.uniforms.copy_(torch.from_numpy(uniform(raw, state.uniforms.dtype)))

    def replace(self, state: SamplerState, row: int, stream: int, position: int) -> None:
        """Give a row another stream, whose first number is for ``position``."""
        self._generators[row] = generator = self._generator(stream)
        column = position % BLOCK
        if column:  # else the whole block is still to be filled
            raw = generator.random_raw(BLOCK - column)
            state.uniforms[row, column:] = torch.from_numpy(uniform(raw, state.uniforms.dtype))

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all but these rows."""
        self._generators = [self._generators[row] for row in rows]


def uniform(raw: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """64 random bits to a number in [0, 1): as many of them as the type holds, so that none is rounded up to 1."""
    bits = 53 if dtype == torch.float64 else 24
    return (raw >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits


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

    def process(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Logits [B, V] after all processors, in float32 or better: their softmax is the sampling distribution.

        ``seen`` [B, V] is True for the tokens that are in a row's text already.
        """
        logits = in_float32(logits)
        if self.penalizes:
            logits = penalize_repetition(logits, seen, self.repetition)
        if self.greedy:
            return logits  # no later processor changes which token is the likeliest
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = top_k_filter(logits, self.top_k)
        if self.top_p < 1:
            logits = top_p_filter(logits, self.top_p)
        return min_p_filter(logits, self.min_p) if self.min_p > 0 else logits

    def sample(self, logits: Tensor, state: SamplerState) -> Tensor:
        """Logits [B, V] to tokens [B]; updates ``state`` in place. Does not synchronize with the host."""
        processed = self.process(logits, state.seen)
        tokens = processed.argmax(-1) if self.greedy else inverse_cdf(processed, state.next())
        if self.penalizes:
            state.seen.scatter_(1, tokens[:, None], True)
        return tokens


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make the tokens of the text so far, prompt included, less likely (Keskar et al. 2019, section 4.1).

    The paper divides their logits by the penalty; a negative one is multiplied instead, since dividing would raise it.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens, and those as likely as the last of them."""
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, NEVER)


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities reach p (nucleus: Holtzman et al. 2020, eq. 2).

    Of equally likely tokens the ones with smaller ids come first.
    """
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    likely = ordered.softmax(-1)
    likelier = likely.cumsum(-1, dtype=sum_dtype(logits.device)) - likely  # the mass of the tokens before each one
    enough = (likelier >= p).index_fill_(-1, tokens.new_zeros(1), False)  # the likeliest always stays
    return logits.masked_fill(enough.scatter(-1, tokens, enough), NEVER)


def min_p_filter(logits: Tensor, share: float) -> Tensor:
    """Keep tokens at least ``share`` times as likely as the likeliest (Nguyen et al. 2024, section 3)."""
    least = logits.amax(-1, keepdim=True) + math.log(share)
    return logits.masked_fill(logits < least, NEVER)


def inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [B] at ``uniforms`` [B, 1] of the cumulative distributions of logits [B, V].

    One number per row decides, so that no row depends on another row or on the size of the vocabulary.
    """
    below = logits.softmax(-1).cumsum(-1, dtype=sum_dtype(logits.device))
    # Always less than the whole mass, also after rounding: an excluded token is never reached.
    return torch.searchsorted(below, uniforms * below[:, -1:], right=True)[:, 0]


def in_float32(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def sum_dtype(device: torch.device) -> torch.dtype:
    """The type of cumulative sums: float64, which MPS lacks."""
    return torch.float32 if device.type == "mps" else torch.float64
