"""FLOPs of operations that PyTorch's counter does not know."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count


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
}
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    FORMULAS[torch.ops.mkldnn._linear_pointwise] = _linear


for _formula in FORMULAS.values():
    _formula._get_raw = True  # type: ignore[attr-defined]  # PyTorch's counter passes it tensors, not shapes
