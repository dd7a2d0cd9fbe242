"""One row through int8 weights, as in decoding at batch 1."""

from torch import Tensor, is_grad_enabled

from regard.nn.fused.decode_gemv import through
from regard.nn.quantized import Int8Config, QuantizedLinear


class FusedQuantizedLinear(QuantizedLinear):
    """``QuantizedLinear`` that reads the codes themselves for one row outside autograd, where there is a kernel."""

    def forward(self, input: Tensor) -> Tensor:
        one_row = input.numel() == self.in_features and not is_grad_enabled()
        if one_row and isinstance(self.config, Int8Config) and input.is_cuda and through is not None:
            return through(input, None, 0.0, self.codes, self.bias, "", None, self.scale)
        return super().forward(input)
