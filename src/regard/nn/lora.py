"""LoRA: a frozen matrix and a trained product of two thin ones beside it (Hu et al. 2021, eq. 3).

    h = W x + (alpha / r) B A x        W [out, in] frozen, A [r, in], B [out, r]

``install_lora`` puts adapters into a model from outside; the readable layers do not know of them. ``merged`` adds the
products to the matrices again, from the tensors of a checkpoint alone: a trained model is loaded as a plain one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.experts.moe import MixtureOfExperts
from regard.nn.fused.onednn import OneDNNLinear
from regard.nn.latent import LatentAttention
from regard.nn.linear import Linear
from regard.nn.quantized import EncodedMatrix, Int4Config, Int8Config, QuantizationConfig, QuantizedLinear

A, B, SCALE = "lora_a", "lora_b", "lora_scale"


class LowRankAdapter(nn.Module):
    """What a layer of the sizes ``in_features`` and ``out_features`` inherits before its own class to be adapted.

    Stacked matrices (queries, keys, values) share one ``lora_a``.
    """

    in_features: int
    out_features: int
    lora_a: nn.Parameter  # [r, in]
    lora_b: nn.Parameter  # [out, r]
    lora_scale: Tensor  # 0-d: alpha / r, in the checkpoint, so that it can be merged without the config
    dropout: float = 0.0

    def forward(self, input: Tensor) -> Tensor:
        x = F.dropout(input, self.dropout, self.training) if self.dropout else input
        return super().forward(input) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.lora_scale

    def adapt(self, like: Tensor, rank: int, alpha: float, dropout: float) -> None:
        """Add an adapter that computes 0, with the type and device of ``like``: A is normal (sec. 4.1), and B is 0."""
        a = torch.randn(rank, self.in_features) * self.in_features**-0.5
        self.lora_a, self.lora_b = nn.Parameter(a.to(like)), nn.Parameter(like.new_zeros(self.out_features, rank))
        self.register_buffer(SCALE, like.new_tensor(alpha / rank))
        self.dropout = dropout


class LoRALinear(LowRankAdapter, OneDNNLinear):
    """A linear layer with an adapter."""


class QLoRALinear(LowRankAdapter, QuantizedLinear):
    """A layer of quantized weights with an adapter (Dettmers et al. 2023, eq. 5)."""


class AdaptedLayer(NamedTuple):
    """One linear layer and its adapter, or the reason why it has none."""

    name: str
    parameters: int  # of the adapter
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {f'not adapted ({self.reason})' if self.reason else f'{self.parameters:,} parameters'}"


def install_lora(
    model: nn.Module,
    targets: Sequence[str],
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    quantization: QuantizationConfig | None = None,
) -> list[AdaptedLayer]:
    """Put an adapter beside every linear layer whose dotted name has a part in ``targets``, in place.

    ``quantization``: their weights are stored so. Returns what was adapted, and why not elsewhere. Which parameters are
    trained is the caller's choice.

    >>> model = nn.ModuleDict({"up": Linear(8, 16), "down": Linear(16, 8)})
    >>> print(*install_lora(model, ["up"], rank=2), sep="\\n")
    up: 48 parameters
    down: not adapted (no target)
    """
    found = []
    inside = _used_directly(model)
    for name, module in list(model.named_modules()):
        if type(module) not in (Linear, OneDNNLinear):
            continue
        assert isinstance(module, Linear)
        reason = inside.get(module, "") if set(name.split(".")) & set(targets) else "no target"
        if not reason:
            _adapted(model, name, module, quantization).adapt(module.weight.detach(), rank, alpha, dropout)
        found.append(AdaptedLayer(name, 0 if reason else rank * (module.in_features + module.out_features), reason))
    return found


def _adapted(model: nn.Module, name: str, layer: Linear, quantization: QuantizationConfig | None) -> LowRankAdapter:
    """A layer of the model, as one that can have an adapter."""
    if quantization is None:
        layer.__class__ = LoRALinear
        assert isinstance(layer, LoRALinear)
        return layer
    quantized = QLoRALinear.of(layer, quantization)
    model.set_submodule(name, quantized)
    assert isinstance(quantized, QLoRALinear)
    return quantized


def _used_directly(model: nn.Module) -> dict[nn.Module, str]:
    """Layers whose ``weight`` is used without calling them, where an adapter would be without effect."""
    found: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            found |= dict.fromkeys(module.modules(), "the matrices of experts are multiplied in groups")
        elif isinstance(module, LatentAttention):
            found[module.up] = "decoding applies its matrix to the query"
    return found


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model with its adapters added to the matrices, W + (alpha / r) B A; quantized W are decoded.

    Those of a model without adapters stay as they are.
    """
    result = dict(tensors)
    for layer in [name.removesuffix(f".{A}") for name in tensors if name.endswith(f".{A}")]:
        a, b, scale = (result.pop(f"{layer}.{part}") for part in (A, B, SCALE))
        weight = result[f"{layer}.weight"] if f"{layer}.weight" in result else _decoded(result, layer, like=a)
        change = scale.double() * (b.double() @ a.double())
        result[f"{layer}.weight"] = (weight.double() + change).to(weight.dtype)
    return result


def _decoded(tensors: dict[str, Tensor], layer: str, like: Tensor) -> Tensor:
    """The quantized weights of a layer, which are removed from ``tensors``; their format follows from their shapes.

    ``like`` [r, in] has their width and type.
    """
    codes, scale = tensors.pop(f"{layer}.codes"), tensors.pop(f"{layer}.scale")
    encoded = EncodedMatrix(codes, scale, tensors.pop(f"{layer}.offset", None))
    form = Int8Config() if encoded.offset is None else Int4Config(group=2 * codes.shape[1] // scale.shape[1])
    return form.decode(encoded, like.shape[1], like.dtype)
