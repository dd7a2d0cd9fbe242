"""Softmaxes over disjoint sets of keys, merged into one (Milakov and Gimelshein 2018, sec. 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def merged(values: list[Tensor], lse: Tensor) -> Tensor:
    """The values of the joint softmax, from the parts and their log-sum-exp [parts, B, H, Q]; -inf: no visible key."""
    share = (lse - lse.detach().amax(0).clamp(min=torch.finfo(lse.dtype).min)).exp()
    total = share.sum(0)
    share = share / total.masked_fill(total == 0, 1)
    return sum(x * one[..., None].to(x.dtype) for x, one in zip(values, share, strict=True))  # pyright: ignore
