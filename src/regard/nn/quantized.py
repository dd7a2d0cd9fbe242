"""Linear layers whose weights are stored in 8 or 4 bits, for decoding and as a frozen base of fine-tuning.

Only weights are quantized: a product multiplies x by the decoded weights in the type of x. A decoding step at batch 1
is bound by reading weights, so fewer bytes are less time; the fast paths are in ``nn/fused/``. Scales are stored as the
bits of floating-point numbers in integer tensors, because ``model.to(dtype)`` would round floating-point buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.errors import UserError
from regard.nn.linear import Linear

LARGE = 2**16  # weights of an embedding that is worth quantizing; it costs bytes but no time


class EncodedMatrix(NamedTuple):
    """A quantized matrix [O, I]: W ≈ codes * scale + offset, with one scale per row or group of a row."""

    codes: Tensor  # int8 [O, I], or uint8 [O, I / 2] with two 4-bit codes per byte
    scale: Tensor  # the bits of floating-point numbers as integers
    offset: Tensor | None = None  # the same; None: 0

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self if tensor is not None)


class QuantizationConfig(Choice):
    """How the weights of linear layers are stored."""

    for_head: ClassVar[type[QuantizationConfig] | None] = None  # another kind for the output layer; None: the same

    def encode(self, weight: Tensor) -> EncodedMatrix:
        """Quantize weights [O, I]."""
        raise NotImplementedError

    def decode(self, encoded: EncodedMatrix, inputs: int, dtype: torch.dtype) -> Tensor:
        """The weights [O, inputs] that ``encoded`` stores."""
        raise NotImplementedError

    def empty(self, outputs: int, inputs: int) -> EncodedMatrix:
        """Room for the encoding of a matrix [outputs, inputs]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Int8Config(QuantizationConfig, kind="int8"):
    """8 bits, symmetric, one scale per output channel: W ≈ codes * max|row| / 127."""

    def encode(self, weight: Tensor) -> EncodedMatrix:
        weight = finite(weight)
        scale = weight.abs().amax(1, keepdim=True) / 127
        codes = torch.where(scale > 0, weight / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
        return EncodedMatrix(codes, scale.view(torch.int32))

    def decode(self, encoded: EncodedMatrix, inputs: int, dtype: torch.dtype) -> Tensor:
        return (encoded.codes * encoded.scale.view(torch.float32)).to(dtype)

    def empty(self, outputs: int, inputs: int) -> EncodedMatrix:
        return EncodedMatrix(torch.zeros(outputs, inputs, dtype=torch.int8), torch.zeros(outputs, 1, dtype=torch.int32))


@dataclass(frozen=True)
class Int4Config(QuantizationConfig, kind="int4"):
    """4 bits in groups of a row, each with a float16 scale and minimum: W ≈ codes * (max - min) / 15 + min.

    The output layer, and the embedding that is tied to it, has 8 bits.
    """

    for_head = Int8Config
    group: int = option(32, "weights per group, an even number")

    def check(self) -> None:
        if self.group < 2 or self.group % 2:
            raise ValueError(f"group must be an even number from 2, not {self.group}")

    def encode(self, weight: Tensor) -> EncodedMatrix:
        weight = finite(weight)
        if weight.numel() and weight.abs().max() > torch.finfo(torch.float16).max / 2:
            raise UserError("a weight is too large for the float16 scales of int4; quantize with int8")
        pad = -weight.shape[1] % self.group
        if pad:  # with the last column, which changes no minimum or maximum
            weight = torch.cat((weight, weight[:, -1:].expand(-1, pad)), dim=1)
        groups = weight.unflatten(1, (-1, self.group))  # [O, groups, group]
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        scale, offset = ((high - low) / 15).half(), low.half()
        codes = torch.where(scale > 0, (groups - offset.float()) / scale.float(), 0.0).round().clamp(0, 15)
        bits = (part.squeeze(2).view(torch.int16) for part in (scale, offset))
        return EncodedMatrix(pack(codes.flatten(1).to(torch.uint8)), *bits)

    def decode(self, encoded: EncodedMatrix, inputs: int, dtype: torch.dtype) -> Tensor:
        assert encoded.offset is not None
        scale, offset = (bits.view(torch.float16).float()[..., None] for bits in (encoded.scale, encoded.offset))
        groups = unpack(encoded.codes).unflatten(1, (-1, self.group))
        return torch.addcmul(offset, groups.float(), scale).flatten(1)[:, :inputs].to(dtype)

    def empty(self, outputs: int, inputs: int) -> EncodedMatrix:
        groups = -(-inputs // self.group)
        bits = (torch.zeros(outputs, groups, dtype=torch.int16) for _ in range(2))
        return EncodedMatrix(torch.zeros(outputs, groups * self.group // 2, dtype=torch.uint8), *bits)


def finite(weight: Tensor) -> Tensor:
    """The weights in float32; refused if one is infinite or NaN."""
    weight = weight.detach().float()
    if not weight.isfinite().all():
        raise UserError("a weight is infinite or NaN, so it cannot be quantized; take an earlier checkpoint")
    return weight


def pack(codes: Tensor) -> Tensor:
    """Codes below 16 [O, I], I even, two per byte: [O, I / 2]; the first of two is in the low bits."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """The codes [O, I] of packed ones [O, I / 2]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


class QuantizedLinear(nn.Module):
    """x Wᵀ + b with frozen, quantized W. Gradients flow to x; ``weight`` decodes W.

    >>> linear = nn.Linear(64, 8)
    >>> layer = QuantizedLinear.of(linear, Int8Config())
    >>> bool((layer.weight - linear.weight).abs().max() <= linear.weight.abs().max() / 254 * 1.001)
    True
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    like: Tensor

    def __init__(self, inputs: int, outputs: Sequence[int], config: QuantizationConfig, *, bias: bool = False):
        super().__init__()
        self.in_features, self.out_features, self.parts, self.config = inputs, sum(outputs), tuple(outputs), config
        self.store(config.empty(self.out_features, inputs))
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the model's type and device
        self.bias = nn.Parameter(torch.zeros(self.out_features), requires_grad=False) if bias else None

    @classmethod
    def of(cls, linear: nn.Linear, config: QuantizationConfig) -> QuantizedLinear:
        """A linear layer, quantized; several matrices that are stacked in it stay ``parts``."""
        layer = cls.shaped(linear, config)
        layer.store(config.encode(linear.weight))
        if layer.bias is not None:
            layer.bias.data.copy_(linear.bias)
        return layer

    @classmethod
    def shaped(cls, linear: nn.Linear, config: QuantizationConfig) -> QuantizedLinear:
        """A layer of the sizes, type and device of a linear one, for weights that are loaded."""
        parts = linear.parts if isinstance(linear, Linear) else (linear.out_features,)
        with linear.weight.device:
            layer = cls(linear.in_features, parts, config, bias=linear.bias is not None)
        return layer.to(linear.weight.dtype)

    def store(self, encoded: EncodedMatrix) -> None:
        """Take over an encoded matrix."""
        for name, tensor in encoded._asdict().items():
            self.register_buffer(name, tensor)

    @property
    def encoded(self) -> EncodedMatrix:
        return EncodedMatrix(self.codes, self.scale, self.offset)

    @property
    def weight(self) -> Tensor:
        """The decoded weights [O, I]."""
        return self.config.decode(self.encoded, self.in_features, self.like.dtype)

    def rows(self, index: Tensor) -> Tensor:
        """The decoded rows [..., I] of an index [...]."""
        flat = index.flatten()
        chosen = EncodedMatrix(*(None if part is None else part[flat] for part in self.encoded))  # type: ignore[arg-type]
        return self.config.decode(chosen, self.in_features, self.like.dtype).view(*index.shape, -1)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad and not torch.compiler.is_compiling():
            return _FrozenProduct.apply(input, self)
        return self.product(input)

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ + b in the type of x."""
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.config}"


class _FrozenProduct(torch.autograd.Function):
    """x Wᵀ + b; the backward pass decodes W again, so it is not stored (QLoRA, Dettmers et al. 2023, eq. 5)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.weight.to(grad.dtype), None


class QuantizedEmbedding(nn.Module):
    """The rows of a quantized matrix as an embedding; that of a tied output layer is stored once."""

    def __init__(self, table: QuantizedLinear):
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = table.out_features, table.in_features

    @property
    def weight(self) -> Tensor:
        """The decoded table [V, C]."""
        return self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table.rows(tokens)


class Replaced(NamedTuple):
    """One layer that was quantized."""

    name: str
    kind: str
    before: int  # bytes
    after: int

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {self.before:,} -> {self.after:,} bytes"


def quantize(model: nn.Module, config: QuantizationConfig, *, empty: bool = False) -> list[Replaced]:
    """Replace linear layers and large embeddings of ``model`` by quantized ones, in place; return what was replaced.

    Routers stay: their choice of experts is not continuous in their weights. ``empty``: with room for weights that are
    loaded afterwards. An embedding that is tied to a linear layer reads its quantized rows.

    >>> model = nn.Sequential(nn.Linear(64, 64, bias=False))
    >>> print(*quantize(model, Int8Config()))
    0: int8, 16,384 -> 4,352 bytes
    """
    done: list[Replaced] = []
    tables: dict[Tensor, QuantizedLinear] = {}
    embeddings = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    fine = config if config.for_head is None else config.for_head()
    make = QuantizedLinear.shaped if empty else QuantizedLinear.of
    for name, module in list(model.named_modules()):
        last = name.rpartition(".")[2]
        if not isinstance(module, nn.Linear) or last == "router":
            continue
        is_head = last == "unembed" or module.weight in embeddings  # `Model.unembed` is the output layer
        layer = make(module, fine if is_head else config)
        tables[module.weight] = layer
        model.set_submodule(name, layer)
        done.append(Replaced(name, layer.config.kind, module.weight.nbytes, layer.encoded.nbytes))
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Embedding) or (module.weight not in tables and module.weight.numel() < LARGE):
            continue
        if module.weight not in tables:
            table = nn.Linear(module.embedding_dim, module.num_embeddings, bias=False, device="meta")
            table.weight = module.weight
            tables[module.weight] = make(table, fine)
            done.append(Replaced(name, fine.kind, module.weight.nbytes, tables[module.weight].encoded.nbytes))
        model.set_submodule(name, QuantizedEmbedding(tables[module.weight]))
    return done


def dequantize(model: nn.Module) -> list[str]:
    """Replace quantized layers by plain ones with the decoded weights, in place; return their names."""
    found = dict(model.named_modules(remove_duplicate=False))
    plain = {module: _plain(module) for module in found.values() if isinstance(module, QuantizedLinear)}
    for name, module in found.items():
        if isinstance(module, QuantizedEmbedding):
            embedding = nn.Embedding(module.num_embeddings, module.embedding_dim, device="meta")
            embedding.weight = plain[module.table].weight
            model.set_submodule(name, embedding)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    for name, module in layers:
        model.set_submodule(name, plain[module])
    return [name for name, _ in layers]


def _plain(layer: QuantizedLinear) -> Linear:
    linear = Linear(layer.in_features, *layer.parts, bias=layer.bias is not None)
    linear.weight = nn.Parameter(layer.weight)
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias.detach().clone())
    return linear
