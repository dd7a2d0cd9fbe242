"""A few rows through int8 weights, as in decoding: a GPU and a CPU have kernels that read the codes themselves.

On a CPU the fast kernels of PyTorch multiply int8 by int8, so x is written in two digits of 7 bits, each a row of the
product: x = top / 63 * (hi + lo / 126) with top = max|x| of the row, exact to top / 15,876. Seven bits, because CPUs
without VNNI add two products in 16 bits (``torch._int_mm`` overflows there, so it is no alternative). Measured on one
core of an AMD EPYC (576 x 3,072): 122 µs, 675 in float32, 1,600 with PyTorch's weight-only ``_weight_int8pack_mm``.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from regard.nn.fused.decode_gemv import through
from regard.nn.quantized import Int8Config, QuantizedLinear

DIGIT = 63  # largest absolute value of a digit
ROWS = 64  # for more rows, decoding the weights once costs little
#: As tensors, since PyTorch would make one of a Python number in every call.
UNIT, LOW = torch.tensor(1 / DIGIT), torch.tensor(2.0 * DIGIT)


class FusedQuantizedLinear(QuantizedLinear):
    """``QuantizedLinear`` that reads the codes themselves for a few rows outside autograd, where there is a kernel."""

    packed: Any = None  # the codes in the layout of the CPU's kernel, made on first use
    packed_version = -1  # of ``codes`` when they were packed

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(self.config, Int8Config) and not torch.is_grad_enabled():
            if input.is_cuda and through is not None and input.numel() == self.in_features:
                return through(input, None, 0.0, self.codes, self.bias, "", None, self.scale)
            plain = input.device.type == "cpu" and input.dtype == torch.float32 and not torch.compiler.is_compiling()
            if plain and FBGEMM and 0 < input.numel() <= ROWS * self.in_features:
                return self._on_cpu(input)
        return super().forward(input)

    def _on_cpu(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, self.in_features)  # [R, I]
        top = rows.abs().amax(1, keepdim=True)  # a third of the time of `vector_norm(rows, inf)` for one row
        if not _between(top, 0.0, 1e30):
            return super().forward(input)
        unit = top * UNIT
        high = rows / unit
        low = (high - high.round()).mul_(LOW)
        high, low = self._digits_product(torch.cat((high, low))).chunk(2)  # which rounds them
        out = torch.add(high, low, alpha=1 / (2 * DIGIT)).mul_(unit)
        if self.bias is not None:
            out += self.bias
        return out.view(*input.shape[:-1], -1)

    def _digits_product(self, rows: Tensor) -> Tensor:
        """Digits [2R, I], rounded, times the decoded weights: [2R, O]."""
        if self.packed is None or self.packed_version != self.codes._version:
            self.packed, self.packed_version = pack_for_fbgemm(self), self.codes._version
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, DIGIT + 1, self.packed)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "packed": None}


def _between(x: Tensor, low: float, high: float) -> bool:
    """Whether all numbers are between two others; NaN is not."""
    if x.numel() == 1:
        return low < x.item() < high
    least, most = x.aminmax()
    return low < least.item() and most.item() < high


def pack_for_fbgemm(layer: QuantizedLinear) -> Any:
    """The codes in the layout of FBGEMM."""
    scale = layer.scale.view(torch.float32).view(-1).double()
    with warnings.catch_warnings():  # PyTorch will remove quantized tensors; weights are decoded then
        warnings.simplefilter("ignore")
        zero = torch.zeros(len(scale), dtype=torch.long)
        codes = torch._make_per_channel_quantized_tensor(layer.codes, scale, zero, 0)
        return torch.ops.quantized.linear_prepack(codes, None)


def _has_fbgemm() -> bool:
    """Whether this PyTorch has FBGEMM, and its product of digits is right."""
    if not {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines):
        return False
    try:
        layer = QuantizedLinear(4, (3,), Int8Config())
        codes = torch.tensor([[127, -127, 1, 0]] * 3, dtype=torch.int8)
        layer.codes.copy_(codes)
        layer.scale.view(torch.float32).fill_(0.5)
        rows = torch.tensor([[63.0, -63.0, 2.0, 5.0], [1.0, 0.0, 0.0, 1.0]])
        packed = pack_for_fbgemm(layer)
        found = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, DIGIT + 1, packed)
        return bool(torch.allclose(found, rows @ layer.weight.t()))
    except (RuntimeError, AttributeError):
        return False


FBGEMM = _has_fbgemm()
