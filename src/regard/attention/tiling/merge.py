"""Softmaxes over disjoint sets of keys, made one (Milakov and Gimelshein 2018, sec. 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def merged(values: list[Tensor], lse: Tensor) -> Tensor:
    """Softmaxes over disjoint keys as one: each weighs as its log-sum-exp [parts, B, H, Q] says; -inf saw nothing."""
    share = (lse - lse.detach().amax(0).clamp(min=torch.finfo(lse.dtype).min)).exp()
    total = share.sum(0)
    share = share / total.masked_fill(total == 0, 1)
    return sum(x * one[..., None].to(x.dtype) for x, one in zip(values, share, strict=True))  # pyright: ignore
