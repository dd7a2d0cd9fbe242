"""A GPU's autocast on a CPU: there PyTorch computes more operations in float32, such as squares, sums and softmax.

A product that autocast does not cast, of a custom operator or one that writes into ``out``, fails if one of its inputs
comes from such an operation. On a CPU no test would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

#: https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32", without losses and distances.
WIDE = [
    "acos", "asin", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2", "logsumexp", "reciprocal", "rsqrt",
    "sinh", "softplus", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "layer_norm",
    "native_layer_norm", "group_norm", "cumprod", "cumsum", "prod", "prod.dim_int", "softmax.int", "log_softmax.int",
    "linalg_vector_norm", "sum", "sum.dim_IntList", "binary_cross_entropy_with_logits", "nll_loss",
]  # fmt: skip
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def in_float32(operation: Any) -> Callable[..., Any]:
    """The operation of float32 copies of 16-bit inputs; a sum of them has the same dtype if its terms have."""

    def run(*given: Any, **named: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            given, named = tree_map_only(Tensor, widened, (given, named))
            return operation(*given, **named)

    return run


@contextmanager
def gpu_autocast() -> Iterator[None]:
    """Let the CPU's autocast cast as a GPU's does, forward and backward. What both cast stays as it is."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in WIDE:
            packet, _, overload = name.partition(".")
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, in_float32(operation), "AutocastCPU")
        yield
    finally:
        library._destroy()
