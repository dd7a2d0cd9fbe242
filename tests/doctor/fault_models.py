"""Faults of models: each function changes a model that was built soundly, before its first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from regard.attention import Full, Softmax
from regard.attention.backends.choose import run
from regard.nn.experts.moe import MixtureOfExperts
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]


def parameter(path: str, change: Callable[[Tensor], Any]) -> Sabotage:
    """Change one parameter in place."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        change(engine.model.get_parameter(path))

    return sabotage


def sharpened(block: int, factor: float) -> Sabotage:
    """Queries and keys of one layer so many times too large: the softmax takes one key and ignores the rest."""

    def change(weight: Tensor) -> None:
        weight[: weight.shape[0] * 2 // 3] *= factor

    return parameter(f"blocks.{block}.attention.qkv.weight", change)


def flattened(block: int) -> Sabotage:
    """A scale that is almost zero: every key gets the same weight, whatever the query."""

    def sabotage(engine: Engine) -> None:
        softmax(engine, block).scale = 1e-4

    return sabotage


class Amplified(Function):
    """Itself; its backward pass, written by hand, is a thousand times too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 1000


def amplified(path: str) -> Sabotage:
    """The gradient that reaches one module is a thousand times too large."""

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_hook(lambda module, given, out: Amplified.apply(out))

    return sabotage


def detached(path: str) -> Sabotage:
    """What comes into one module is cut off from the gradient, as by a `.detach()` that was left in."""

    def cut(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0].detach(), *given[1:]

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_pre_hook(cut)

    return sabotage


def exponential(block: int) -> Sabotage:
    """An exponential in the place of one layer's activation, over weights that make it overflow."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        feedforward: Any = engine.model.get_submodule(f"blocks.{block}.feedforward")
        feedforward.activation = torch.exp
        feedforward.up.weight *= 2000

    return sabotage


def biased_router(block: int, expert: int, amount: float) -> Sabotage:
    """A bias that nobody learns in one layer's router."""

    def sabotage(engine: Engine) -> None:
        layer = cast(MixtureOfExperts, engine.model.get_submodule(f"blocks.{block}.feedforward"))
        assert isinstance(layer, MixtureOfExperts)
        bias, plain = torch.zeros(layer.config.experts), layer._logits
        bias[expert] = amount
        layer._logits = lambda rows: plain(rows) + bias

    return sabotage


def unmasked(engine: Engine) -> None:
    """All layers see the future: the causal mask is gone."""
    model: Any = engine.model
    model.masks = [Full() for _ in model.masks]


def unmasked_layer(block: int) -> Sabotage:
    """One layer ignores the mask that it is given."""

    def sabotage(engine: Engine) -> None:
        mechanism = softmax(engine, block)

        def forward(q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Any:
            seen = mechanism.plan(Full(), plan.queries, None, like=q)
            return run(mechanism.call(q, k, v, seen), mechanism.backend)

        mechanism.forward = forward

    return sabotage


def unturned(engine: Engine) -> None:
    """Rotary positions whose angles are all zero: nothing turns."""
    position: Any = engine.model.get_submodule("position")
    plain = position.rotation
    position.rotation = lambda phase: plain(phase * 0)


def softmax(engine: Engine, block: int) -> Softmax:
    """The mechanism of one layer."""
    found = engine.model.get_submodule(f"blocks.{block}.attention.mechanism")
    assert isinstance(found, Softmax)
    return found
