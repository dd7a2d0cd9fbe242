"""Dropout layers."""

from __future__ import annotations

from torch import nn


def dropout(p: float) -> nn.Module:
    """Dropout with probability ``p``; the identity for 0, which costs nothing."""
    return nn.Dropout(p) if p else nn.Identity()
