"""Biases: what a pair's positions do to its score, after scaling and before the mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attend.slots import Pairs


class Bias(nn.Module):
    """Base: ``adjust(score, pairs) -> score``, elementwise, so that dense code and kernels share it.

    ``additive`` says that ``adjust(s, p) = s + f(p)``: such a bias can travel as a float mask.
    """

    additive = True

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        raise NotImplementedError


class Alibi(Bias):
    """A penalty that grows with distance, steeper in some heads than in others (Press et al. 2022, sec. 3)."""

    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return score - self.slopes[pairs.head].to(score.dtype) * (pairs.q.phase - pairs.k.phase).abs()


def alibi_slopes(heads: int) -> list[float]:
    """The paper's geometric series; for head counts that are no power of two, its interleaved extension."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


class Relative(Bias):
    """A learned number per head and clipped distance (Shaw et al. 2018, clipping of sec. 3.2; one scalar as in T5)."""

    def __init__(self, heads: int, distance: int):
        super().__init__()
        self.distance = distance
        self.table = nn.Parameter(torch.zeros(heads, 2 * distance + 1))

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        apart = (pairs.q.phase - pairs.k.phase).clamp(-self.distance, self.distance) + self.distance
        return score + self.table[pairs.head, apart]


class SoftCap(Bias):
    """cap·tanh(score / cap): no score leaves (-cap, cap). Not additive: it bends the score itself."""

    additive = False

    def __init__(self, cap: float):
        super().__init__()
        self.cap = cap

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)


class Chain(Bias):
    """Several biases, one after the other."""

    def __init__(self, *parts: Bias):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    @property
    def additive(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(part.additive for part in self.parts)

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        for part in self.parts:
            assert isinstance(part, Bias)
            score = part.adjust(score, pairs)
        return score
