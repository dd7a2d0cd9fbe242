"""Normalizers: how a row of scores becomes a row of weights.

A normalizer is a value: ``normalize(scores, visible)`` takes scaled and biased scores [..., K] and the pairs that the
mask allows, and returns weights that are zero wherever ``visible`` is False. A row that sees nothing is zero with zero
gradient, hence finite lows instead of -inf. Fused kernels compute ``SoftmaxNormalizer`` only and refuse the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import Choice, option


class Normalizer:
    """Base class. A new one is a frozen dataclass with ``normalize``, or an ``nn.Module`` too if it has parameters."""

    sums_to_one = True  # the weights of a row that sees something sum to 1
    per_head = True  # the weights of a head follow from its own scores
    discontinuous = False  # selects keys by score: rounding may change which
    not_fused = "a fused kernel computes the softmax only"  # why backends with fused kernels refuse it

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxNormalizer(Normalizer):
    """exp(s/T) / Σ exp(s/T) (Vaswani et al. 2017, eq. 1)."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"a softmax has a temperature above zero, not {self.temperature}; use HardLookup for zero")

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return _softmax(scores if self.temperature == 1 else scores / self.temperature, visible)


SOFTMAX = SoftmaxNormalizer()


@dataclass(frozen=True)
class HardLookup(Normalizer):
    """The limit of the softmax at temperature 0: the best keys in equal parts. No gradient reaches the scores."""

    discontinuous = True
    not_fused = "hard lookup is no softmax"

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        best = (scores == scores.amax(-1, keepdim=True)) & visible
        return best.to(scores.dtype) / best.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Sigmoid(Normalizer):
    """σ(s + shift) for each key by itself (Ramapuram et al. 2024, eq. 3); they set the shift to -ln K."""

    shift: float = 0.0
    sums_to_one = False

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return (scores + self.shift).sigmoid().masked_fill(~visible, 0)


@dataclass(frozen=True)
class TopKSoftmax(Normalizer):
    """The softmax over the ``k`` best-scoring keys of a row (Gupta et al. 2021).

    ``softness`` 0 cuts hard: gradients reach the kept keys only. Above 0 the cut is a smooth gate σ((s - t)/softness),
    the threshold t set so that the gates sum to k: differentiable in every score, and the hard cut in the limit.
    """

    k: int
    softness: float = 0.0
    temperature: float = 1.0
    discontinuous = True
    not_fused = "top-k needs every score of a row at once"

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        if self.softness == 0:
            visible = visible & _best(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), self.k)
            return _softmax(scores / self.temperature, visible)
        dtype, scores = scores.dtype, _wide(scores) / self.temperature
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        few = visible.sum(-1, keepdim=True) <= self.k  # nothing to cut
        gates = F.logsigmoid(self.gate(scores, visible)).masked_fill(few, 0)
        return _softmax(scores + gates, visible).to(dtype)

    def gate(self, scores: Tensor, visible: Tensor) -> Tensor:
        """(s - t)/softness with the threshold t at which the gates σ(.) of the visible keys sum to k."""
        wanted = torch.minimum(torch.full_like(scores[..., :1], self.k), visible.sum(-1, keepdim=True) - 0.5)
        margin, flat = self.softness * 50, scores.detach()
        low = flat.masked_fill(~visible, torch.inf).amin(-1, keepdim=True).clamp(max=1e30) - margin
        high = flat.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e30) + margin

        def opened(t: Tensor) -> Tensor:
            return ((scores - t) / self.softness).sigmoid() * visible

        def slope(opened: Tensor) -> Tensor:
            return opened * (1 - opened) / self.softness

        t = _threshold(opened, slope, (low, high), wanted)
        return ((scores - t) / self.softness).masked_fill(~visible, 0)


@dataclass(frozen=True)
class Entmax(Normalizer):
    """[(α - 1) s - t]₊^(1/(α - 1)) with the threshold t at which the weights sum to 1 (Peters et al. 2019, eq. 10).

    Scores far below the best get exactly zero. α = 2 is sparsemax (Martins and Astudillo 2016, eq. 2); towards 1 it
    becomes the softmax.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not 1 < self.alpha <= 2:
            raise ValueError(f"alpha must be above 1 and at most 2, not {self.alpha}; 1 is the softmax")

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        power = 1 / (self.alpha - 1)
        dtype, scores = scores.dtype, _wide(scores) * (self.alpha - 1)
        low = torch.finfo(scores.dtype).min
        scores = scores - scores.detach().masked_fill(~visible, low).amax(-1, keepdim=True)

        def weights(t: Tensor) -> Tensor:
            return (scores - t).masked_fill(~visible, 0).clamp(min=0) ** power

        def slope(weights: Tensor) -> Tensor:
            return torch.where(weights > 0, power * weights ** (2 - self.alpha), 0)

        one = torch.ones_like(scores[..., :1])
        return weights(_threshold(weights, slope, (-one, 0 * one), one)).to(dtype)


def _softmax(scores: Tensor, visible: Tensor) -> Tensor:
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(~visible, low).softmax(-1).masked_fill(~visible, 0)


def _wide(scores: Tensor) -> Tensor:
    """In float32 at least: a threshold is a sum over a whole row."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _best(scores: Tensor, k: int) -> Tensor:
    """True at the ``k`` greatest scores of each row; of equal ones the earliest key, as ``torch.sort(stable=True)``."""
    chosen = scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)


Elementwise = Callable[[Tensor], Tensor]


def _threshold(shares: Elementwise, slope: Elementwise, bounds: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    """The threshold t [..., 1] between ``bounds`` at which Σ shares(t) = ``wanted``, with its gradient.

    t is found by bisection without gradients; one Newton step from there adds nothing to its value and gives it the
    exact implicit derivative. ``slope(shares)`` is -d shares / dt.
    """
    low, high = bounds
    with torch.no_grad():
        for _ in range(80):
            middle = (low + high) / 2
            over = shares(middle).sum(-1, keepdim=True) > wanted
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    t = (low + high) / 2
    given = shares(t)
    rate = slope(given).sum(-1, keepdim=True).detach().clamp(min=torch.finfo(given.dtype).tiny)
    step = (given.sum(-1, keepdim=True) - wanted) / rate
    return t + (step - step.detach())


# Configs


class NormalizerConfig(Choice):
    """How attention scores become weights."""

    def build(self, context: int) -> Normalizer:
        """The normalizer for a model whose longest training sequence has ``context`` tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxNormalizerConfig(NormalizerConfig, kind="softmax"):
    """exp(score) / Σ exp(score)."""

    temperature: float = option(1.0, "divides the scores; 0 is hard lookup", least=0)

    def build(self, context: int) -> Normalizer:
        return SoftmaxNormalizer(self.temperature) if self.temperature else HardLookup()


@dataclass(frozen=True)
class SigmoidConfig(NormalizerConfig, kind="sigmoid"):
    """sigmoid(score + shift) for each key by itself."""

    shift: float | None = option(None, "added to the scores (default: -ln context)")

    def build(self, context: int) -> Normalizer:
        return Sigmoid(-math.log(context) if self.shift is None else self.shift)


@dataclass(frozen=True)
class TopKNormalizerConfig(NormalizerConfig, kind="topk"):
    """The softmax over the best keys of each query."""

    k: int = option(16, "number of keys that a query keeps", least=1)
    softness: float = option(
        0.0, "0 cuts hard; above 0 the cut is a smooth gate with a gradient for every score", least=0
    )

    def build(self, context: int) -> Normalizer:
        return TopKSoftmax(self.k, self.softness)


@dataclass(frozen=True)
class EntmaxConfig(NormalizerConfig, kind="entmax"):
    """Sparse weights between the softmax (alpha = 1) and sparsemax (alpha = 2)."""

    alpha: float = option(1.5, "above 1 and at most 2: the greater, the more weights are exactly zero", above=1, most=2)

    def build(self, context: int) -> Normalizer:
        return Entmax(self.alpha)


@dataclass(frozen=True)
class SparsemaxConfig(NormalizerConfig, kind="sparsemax"):
    """The projection of the scores onto the probability simplex: entmax with alpha = 2."""

    def build(self, context: int) -> Normalizer:
        return Entmax(2.0)
