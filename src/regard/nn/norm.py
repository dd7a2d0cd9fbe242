"""Normalization layers: they keep activations at a fixed scale."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option


class NormConfig(Choice):
    """Which norm a model uses."""

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class LayerNorm(nn.Module):
    """(x - mean)/std · gain + bias over the last axis (Ba et al. 2016, eq. 4); the bias is optional."""

    def __init__(self, width: int, *, bias: bool = True, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def reset(self) -> None:
        """Gain 1 and bias 0."""
        nn.init.ones_(self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean x² + eps) · gain: no mean is subtracted (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, width: int, *, eps: float = 1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def reset(self) -> None:
        """Gain 1."""
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)  # the kernel takes one type only


@dataclass(frozen=True)
class LayerNormConfig(NormConfig, kind="layer"):
    """LayerNorm."""

    bias: bool = option(True, "add a learned bias")
    eps: float = option(1e-5, "added to the variance")

    def build(self, width: int) -> nn.Module:
        return LayerNorm(width, bias=self.bias, eps=self.eps)


@dataclass(frozen=True)
class RMSNormConfig(NormConfig, kind="rms"):
    """RMSNorm."""

    eps: float = option(1e-6, "added to the mean square")

    def build(self, width: int) -> nn.Module:
        return RMSNorm(width, eps=self.eps)


@dataclass(frozen=True)
class NoNormConfig(NormConfig, kind="none"):
    """No norm at all, for comparison."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()
