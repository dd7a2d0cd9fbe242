"""What fake tensors and PyTorch's counter do not know of some operations: FLOPs, launches and the memory of kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from regard.plan.recurrent import recurrent_back_flops, recurrent_back_steps, recurrent_flops, recurrent_steps
from regard.plan.visible import visible_back_flops, visible_flops


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape)


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)


def _lstm(x: Tensor, w: Tensor, u: Tensor, *_: object, **__: object) -> int:
    return 2 * x.shape[:-1].numel() * (w.numel() + u.numel())


def _lstm_backward(x: Tensor, w: Tensor, u: Tensor, *_: object, **__: object) -> int:
    return 2 * _lstm(x, w, u)


def _linear(x: Tensor, *tensors: Tensor, **_: object) -> int:
    weight = next(t for t in tensors if t.ndim == 2 and t.shape[1] == x.shape[-1])
    return 2 * x.shape[:-1].numel() * weight.numel()


FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.regard_plan.recurrent: recurrent_flops,
    torch.ops.regard_plan.recurrent_back: recurrent_back_flops,
    torch.ops.regard_plan.visible: visible_flops,
    torch.ops.regard_plan.visible_back: visible_back_flops,
}
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    FORMULAS[torch.ops.mkldnn._linear_pointwise] = _linear


for _formula in FORMULAS.values():
    _formula._get_raw = True  # type: ignore[attr-defined]  # PyTorch's counter passes it tensors, not shapes


def _steps(x: Tensor, *_: object) -> int:
    return x.shape[0]


#: Operations of a kernel that runs through a sequence, one step after another.
LAUNCHES: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _steps,
    torch.ops.aten.mkldnn_rnn_layer_backward: _steps,
    torch.ops.regard_plan.recurrent: recurrent_steps,
    torch.ops.regard_plan.recurrent_back: recurrent_back_steps,
}


#: Numbers that a kernel keeps for its backward pass, per token and unit: 15.2 to 15.7 were measured of oneDNN's LSTM.
ONEDNN_LSTM = 15.5


def _workspace(x: Tensor, w: Tensor, u: Tensor, *_: object) -> int:
    return int(ONEDNN_LSTM * x.shape[:-1].numel() * u.shape[1] * x.element_size())


#: Bytes of the fourth output of an operation, which is empty when fake tensors run it.
WORKSPACES: dict[Any, Callable[..., int]] = {torch.ops.aten.mkldnn_rnn_layer: _workspace}


def workspace(device: torch.device) -> int:
    """Bytes that PyTorch gives cuBLAS for each of two threads, that of the forward and that of the backward pass.

    32 MiB from Hopper on, 8.1 MiB before (the defaults of CUBLAS_WORKSPACE_CONFIG).
    """
    if device.type != "cuda":
        return 0
    return 2 * (2**25 if torch.cuda.get_device_capability(device)[0] >= 9 else 2**23 + 2**17)
