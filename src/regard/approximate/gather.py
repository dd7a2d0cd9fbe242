"""What every attention of a model is given on some text: hooks note queries, keys and values of one pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Plan, Softmax


class Given(NamedTuple):
    """One exact attention of one pass. A block that is repeated gives several with the same name."""

    name: str  # the mechanism's module path
    mechanism: Softmax
    q: Tensor  # [B, H, N, D]
    k: Tensor  # [B, G, N, D]
    v: Tensor  # [B, G, N, E]
    plan: Plan


@torch.no_grad()
def gather(model: nn.Module, tokens: Tensor) -> list[Given]:
    """Every exact attention that the model carries out for tokens [B, N], in order; the main call is not altered."""
    found: list[Given] = []

    def watch(name: str, module: Softmax) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
            given = {**dict(zip(("q", "k", "v", "plan"), inputs, strict=False)), **named}
            found.append(Given(name, module, given["q"], given["k"], given["v"], given["plan"]))

        return note

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Softmax):
                stack.callback(module.register_forward_hook(watch(name, module), with_kwargs=True).remove)
        model(tokens)
    return found
