"""The inputs of every attention of a model on some text: hooks record queries, keys and values of one pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Mechanism, Plan


class Given(NamedTuple):
    """One attention of one forward pass. A repeated block gives several with the same name."""

    name: str  # the mechanism's module path
    mechanism: Mechanism
    q: Tensor  # [B, H, N, D]
    k: Tensor  # [B, G, N, D]
    v: Tensor  # [B, G, N, E]
    plan: Plan


@torch.no_grad()
def gather(model: nn.Module, tokens: Tensor) -> list[Given]:
    """The inputs of every attention with weights that the model computes for tokens [B, N], in order."""
    records: list[Given] = []

    def watch(name: str, module: Mechanism) -> Callable[..., None]:
        def record(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            given = {**dict(zip(("q", "k", "v", "plan"), inputs, strict=False)), **named}
            records.append(Given(name, module, given["q"], given["k"], given["v"], given["plan"]))

        return record

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Mechanism) and module.unobservable is None:
                stack.callback(module.register_forward_hook(watch(name, module), with_kwargs=True).remove)
        model(tokens)
    return records
