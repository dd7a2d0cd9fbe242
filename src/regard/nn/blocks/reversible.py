"""Reversible blocks: what went in follows from what came out, so nothing needs to be kept in between.

Two streams pass through a stack (Gomez et al. 2017, eq. 6-8; for Transformers Kitaev et al. 2020, sec. 3):

    y1 = x1 + F(x2)      F: norm, attention, dropout        x2 = y2 - G(y1)
    y2 = x2 + G(y1)      G: norm, feed-forward, dropout     x1 = y1 - F(x2)

The backward pass goes down the stack with the two streams, each branch computed once more for its gradient: memory does
not grow with depth, for the price of a second forward pass. Both streams start as the embedding, and the stack gives
their mean (Kitaev et al. join them side by side, for which every head would have to be twice as wide). What a layer
tells beside its output (a mixture of experts its losses) passes through the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.errors import UserError
from regard.nn.attention import AttentionContext
from regard.nn.auxiliary_loss import AuxiliaryLossLayer, auxiliary_layers
from regard.nn.blocks.block import Block, BlockConfig

Branch = Callable[[Tensor], Tensor]


class Reversible(Block):
    """Two streams in, two streams out."""

    def forward(
        self, first: Tensor, second: Tensor, context: AttentionContext, memory: Any = None
    ) -> tuple[Tensor, Tensor]:
        first = first + self.attend(second, context, memory)
        return first, second + self.think(first)

    def attend(self, x: Tensor, context: AttentionContext, memory: Any = None) -> Tensor:
        """F."""
        return self.drop(self.attention(self.norm_attention(x), context, memory))

    def think(self, x: Tensor) -> Tensor:
        """G."""
        return self.drop(self.feedforward(self.norm_feedforward(x)))


class Noise(NamedTuple):
    """Where the random generators stand: the CPU's, and that of the device if it is another."""

    cpu: Tensor
    other: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> Noise:
        other = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(*_named(device))
        return cls(torch.get_rng_state(), other)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.other is not None:
            torch.get_device_module(device).set_rng_state(self.other, *_named(device))

    def again(self, branch: Branch, x: Tensor) -> Tensor:
        """``branch(x)`` with dropout falling as it did from here; the generators themselves stay where they are."""
        today = Noise.now(x.device)
        self.restore(x.device)
        try:
            return branch(x)
        finally:
            today.restore(x.device)


def _named(device: torch.device) -> tuple[torch.device, ...]:
    return (device,) if device.type == "cuda" else ()  # there is one of the others only


class Streams:
    """Where the backward pass has come to on its way down: both streams after the block that is next."""

    first: Tensor
    second: Tensor


class _Through(Function):
    """One block as one step of autograd, that keeps nothing. Parameters are inputs, to have their gradients from it."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        block: Reversible,
        context: AttentionContext,
        streams: Streams,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, ...]:
        ctx.block, ctx.context, ctx.streams, ctx.parameters = block, context, streams, parameters
        ctx.precision, ctx.attended = _precision(first.device.type), Noise.now(first.device)
        with ctx.precision():
            first = first + block.attend(second, context)
            ctx.thought = Noise.now(first.device)
            second = second + block.think(first)
        ctx.layers = _speakers(block)
        return first, second, *_losses(ctx.layers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_first: Tensor, for_second: Tensor, *for_losses: Tensor) -> tuple[Any, ...]:
        """Gomez et al. 2017, algorithm 1."""
        streams, attend = ctx.streams, partial(ctx.block.attend, context=ctx.context)
        with ctx.precision(), _heard(ctx.layers):
            grads = (for_second, *for_losses)
            came, grad, ones = _undo(ctx.block.think, ctx.thought, streams.first, grads, ctx.parameters, ctx.layers)
            streams.second, for_first = streams.second - came, for_first + grad
            came, grad, others = _undo(attend, ctx.attended, streams.second, (for_first,), ctx.parameters)
            streams.first, for_second = streams.first - came, for_second + grad
        return for_first, for_second, None, None, None, *map(_sum, ones, others)


class _End(Function):
    """The mean of the streams, which are kept here and nowhere else: the backward pass sets out from them."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, streams: Streams) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.streams = streams
        return (first + second) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.streams.first, ctx.streams.second = ctx.saved_tensors
        return grad / 2, grad / 2, None


def _undo(
    branch: Branch,
    noise: Noise,
    x: Tensor,
    grads: tuple[Tensor, ...],
    parameters: tuple[nn.Parameter, ...],
    layers: Sequence[AuxiliaryLossLayer] = (),
) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    """What ``branch`` had added to the other stream, and the gradients of x and of the parameters through it.

    ``grads`` are those of what it added, and of the losses that the ``layers`` in it told.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        outs = (noise.again(branch, x), *_losses(layers))
    upstream = [grad.to(out.dtype) for grad, out in zip(grads, outs, strict=True)]
    for_x, *others = torch.autograd.grad(outs, (x, *parameters), upstream, allow_unused=True)
    return outs[0].detach(), torch.zeros_like(x) if for_x is None else for_x, others


def _speakers(block: Reversible) -> list[AuxiliaryLossLayer]:
    """The layers of the feed-forward network that are auxiliary in this pass, for their say in the loss."""
    return [layer for layer in auxiliary_layers(block.feedforward) if layer.collecting and layer.recorded]


def _losses(layers: Sequence[AuxiliaryLossLayer]) -> list[Tensor]:
    """What each of them told last."""
    return [value for layer in layers for _, value in layer.recorded[-1].losses.values()]


def _put(layers: Sequence[AuxiliaryLossLayer], losses: Sequence[Tensor]) -> None:
    """The same losses, as they came out of autograd's step, in the place of those from inside of it."""
    left = iter(losses)
    for layer in layers:
        *earlier, last = layer.recorded
        last = last._replace(losses={name: (factor, next(left)) for name, (factor, _) in last.losses.items()})
        layer.recorded = (*earlier, last)


@contextmanager
def _heard(layers: Sequence[AuxiliaryLossLayer]) -> Iterator[None]:
    """They tell once more, to us alone."""
    for layer in layers:
        layer.collecting = True
    try:
        yield
    finally:
        for layer in layers:
            layer.collecting, layer.recorded = False, ()


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    return two if one is None else one if two is None else one + two


def _trained(block: nn.Module) -> list[nn.Parameter]:
    found = [parameter for parameter in block.parameters() if parameter.requires_grad]
    if any(hasattr(parameter, "full_tensor") for parameter in found):
        raise UserError(
            "reversible blocks are trained by one process, since shards come and go with the layers' first pass; "
            "use --model.block pre-norm --train.checkpointing true for several"
        )
    return found


def _precision(device: str) -> Callable[[], AbstractContextManager]:
    """Today's automatic precision, for later; no casts are cached: a weight's first one has no graph to the weight."""
    enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype, enabled, cache_enabled=False)


@dataclass(frozen=True)
class ReversibleConfig(BlockConfig, kind="reversible"):
    """Two streams whose past follows from their present: memory does not grow with depth."""

    compilable = False  # a compiler would keep the inside of every layer for its backward pass

    def run(
        self,
        blocks: Sequence[nn.Module],
        x: Tensor,
        contexts: Sequence[AttentionContext],
        memories: Sequence[Any],
        recompute: bool,
    ) -> Tensor:
        """Through all blocks. Everything is recomputed as it is, so ``recompute`` says nothing new."""
        stack = [cast(Reversible, block) for block in blocks]
        keep = not torch.is_grad_enabled() or torch.compiler.is_compiling()
        if keep or any(memory is not None for memory in memories):
            first = second = x
            for block, context, memory in zip(stack, contexts, memories, strict=True):
                first, second = block(first, second, context, memory)
            return (first + second) / 2
        first, second, streams = x, x, Streams()
        for block, context in zip(stack, contexts, strict=True):
            first, second, *losses = _Through.apply(first, second, block, context, streams, *_trained(block))
            _put(_speakers(block), losses)
        return _End.apply(first, second, streams)

    def build(self, *parts, **named) -> Block:
        if named.get("cross") is not None:
            raise UserError("reversible blocks have no place for cross-attention; use --model.block pre-norm")
        return Reversible(*parts, **named)
