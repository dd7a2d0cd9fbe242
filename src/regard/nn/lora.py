"""LoRA: a frozen matrix and a trained product of two thin ones beside it (Hu et al. 2021, eq. 3).

    h = W x + (alpha / r) B A x        W [out, in] frozen, A [r, in], B [out, r]

``install_lora`` puts adapters into a model from outside; the readable layers do not know of them. ``merged`` adds the
products to the matrices again, from the tensors of a checkpoint alone: whoever loads a trained model gets a plain one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.experts.moe import MixtureOfExperts
from regard.nn.fused.onednn import OneDNNLinear
from regard.nn.latent import LatentAttention
from regard.nn.linear import Linear

A, B, SCALE = "lora_a", "lora_b", "lora_scale"


class LoRALinear(OneDNNLinear):
    """A linear layer with an adapter. Stacked matrices (queries, keys, values) share one ``lora_a``."""

    lora_a: nn.Parameter  # [r, in]
    lora_b: nn.Parameter  # [out, r]
    lora_scale: Tensor  # 0-d: alpha / r, in the checkpoint, so that it can be merged without the config
    dropout: float = 0.0
    enabled: bool = True

    def forward(self, input: Tensor) -> Tensor:
        base = super().forward(input)
        return base + self.adapter(input) if self.enabled else base

    def adapter(self, input: Tensor) -> Tensor:
        """(alpha / r) B A x."""
        x = F.dropout(input, self.dropout, self.training) if self.dropout else input
        return F.linear(F.linear(x, self.lora_a), self.lora_b) * self.lora_scale

    def adapt(self, rank: int, alpha: float, dropout: float) -> None:
        """Add an adapter that computes 0: A is normal, as in section 4.1, and B is 0."""
        like = {"dtype": torch.get_default_dtype(), "device": self.lora_device}
        self.lora_a = nn.Parameter(torch.randn(rank, self.in_features, **like) * self.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, rank, **like))
        self.register_buffer(SCALE, torch.tensor(alpha / rank, **like))
        self.dropout = dropout

    @property
    def lora_device(self) -> torch.device:
        """The device of the frozen matrix."""
        return self.weight.device


class AdaptedLayer(NamedTuple):
    """One linear layer and its adapter, or the reason why it has none."""

    name: str
    parameters: int  # of the adapter
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {f'not adapted ({self.reason})' if self.reason else f'{self.parameters:,} parameters'}"


def install_lora(
    model: nn.Module, targets: Sequence[str], rank: int = 8, alpha: float = 16.0, dropout: float = 0.0
) -> list[AdaptedLayer]:
    """Put an adapter beside every linear layer whose dotted name has a part in ``targets``, in place.

    Returns what was adapted, and why not elsewhere. Which parameters are trained is the caller's choice.

    >>> model = nn.ModuleDict({"up": Linear(8, 16), "down": Linear(16, 8)})
    >>> print(*install_lora(model, ["up"], rank=2), sep="\\n")
    up: 48 parameters
    down: not adapted (no target)
    """
    found = []
    inside = _used_directly(model)
    for name, module in model.named_modules():
        if type(module) not in (Linear, OneDNNLinear):
            continue
        assert isinstance(module, Linear)
        reason = inside.get(module, "") if set(name.split(".")) & set(targets) else "no target"
        if not reason:
            module.__class__ = LoRALinear
            assert isinstance(module, LoRALinear)
            module.adapt(rank, alpha, dropout)
        found.append(AdaptedLayer(name, 0 if reason else rank * (module.in_features + module.out_features), reason))
    return found


def _used_directly(model: nn.Module) -> dict[nn.Module, str]:
    """Layers whose ``weight`` is used without calling them, where an adapter would be without effect."""
    found: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            found |= dict.fromkeys(module.modules(), "the matrices of experts are multiplied in groups")
        elif isinstance(module, LatentAttention):
            found[module.up] = "decoding applies its matrix to the query"
    return found


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """A context in which the model computes what it did before it was adapted."""
    layers = [module for module in model.modules() if isinstance(module, LoRALinear)]
    try:
        for layer in layers:
            layer.enabled = False
        yield
    finally:
        for layer in layers:
            layer.enabled = True


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model with its adapters added to the matrices: W + (alpha / r) B A.

    Those of a model without adapters stay as they are.
    """
    result = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in (A, B, SCALE)}
    for name in tensors:
        layer, _, last = name.rpartition(".")
        if last != A:
            continue
        a, b, scale = (tensors[f"{layer}.{part}"] for part in (A, B, SCALE))
        weight = result[f"{layer}.weight"]
        result[f"{layer}.weight"] = (weight.double() + scale.double() * (b.double() @ a.double())).to(weight.dtype)
    return result
