"""Watching a model from outside for test_contract.py: which plans its attention got, and every tensor that was made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import Plan, Softmax


class Tensors(TorchDispatchMode):
    """Inside the context, forward and backward: how often each operator ran, and the largest tensor any one made."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.largest, self.maker = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.ran[name] += 1
        for made in tensors_in(out):
            if made.numel() > self.largest:
                self.largest, self.maker = made.numel(), f"{name} {tuple(made.shape)}"
        return out


def watch_plans(model: nn.Module) -> list[Plan]:
    """A list that gets the plan of every attention call from now on."""
    plans: list[Plan] = []
    for mechanism in model.modules():
        if isinstance(mechanism, Softmax):
            mechanism.register_forward_pre_hook(lambda _, given: plans.append(given[3]))
    return plans


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor in a tree of tuples, named ones too."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
