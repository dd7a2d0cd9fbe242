"""Reversible blocks: their inputs are computed from their outputs, so no activation between blocks is stored.

Two streams pass through a stack (Gomez et al. 2017, eq. 6-8; for Transformers Kitaev et al. 2020, sec. 3):

    y1 = x1 + F(x2)      F: norm, attention, dropout        x2 = y2 - G(y1)
    y2 = x2 + G(y1)      G: norm, feed-forward, dropout     x1 = y1 - F(x2)

The backward pass recovers both streams block by block and recomputes each branch for its gradient: memory does not grow
with depth, at the cost of a second forward pass. Both streams start as the embedding, and the output is their mean
(Kitaev et al. concatenate them, which needs a head of twice the width). Auxiliary losses of a block (those of a mixture
of experts) are outputs of the same autograd step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.attention.call import SavedTensors
from regard.errors import UserError
from regard.nn.attention import AttentionContext
from regard.nn.auxiliary_loss import AuxiliaryLossLayer, auxiliary_layers
from regard.nn.blocks.block import Block, BlockConfig, Stack

Branch = Callable[[Tensor], Tensor]


class Reversible(Block):
    """Two streams in, two streams out."""

    def forward(self, first: Tensor, second: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        first = first + self.attention_branch(second, context)
        return first, second + self.feedforward_branch(first)

    def attention_branch(self, x: Tensor, context: AttentionContext) -> Tensor:
        """F."""
        return self.drop(self.attention(self.norm_attention(x), context))

    def feedforward_branch(self, x: Tensor) -> Tensor:
        """G."""
        return self.drop(self.feedforward(self.norm_feedforward(x)))


class RandomState(NamedTuple):
    """The state of the random generators: the CPU's, and that of the device if it is another."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def current(cls, device: torch.device) -> "RandomState":
        """The states of the generators now."""
        other = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(*_index(device))
        return cls(torch.get_rng_state(), other)

    def restore(self, device: torch.device) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.get_device_module(device).set_rng_state(self.device, *_index(device))

    def replay(self, branch: Branch, x: Tensor) -> Tensor:
        """``branch(x)`` with the dropout of this state; the generators are left as they were."""
        before = RandomState.current(x.device)
        self.restore(x.device)
        try:
            return branch(x)
        finally:
            before.restore(x.device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    return (device,) if device.type == "cuda" else ()  # other backends have one device


class Streams:
    """Both streams at the output of the block whose backward pass comes next."""

    first: Tensor
    second: Tensor


class _Through(Function):
    """One block as one autograd step that stores no activations. Parameters are inputs, so that they get gradients."""

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
        ctx.precision, before_attention = _precision(first.device.type), RandomState.current(first.device)
        with ctx.precision():
            first = first + block.attention_branch(second, context)
            ctx.random = before_attention, RandomState.current(first.device)
            second = second + block.feedforward_branch(first)
        ctx.layers = _recording_layers(block)
        return first, second, *_losses(ctx.layers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_first: Tensor, for_second: Tensor, *for_losses: Tensor) -> tuple[Any, ...]:
        """Gomez et al. 2017, algorithm 1."""
        block, streams, parameters = ctx.block, ctx.streams, ctx.parameters
        attention_random, feedforward_random = ctx.random
        with ctx.precision(), _recording(ctx.layers):
            grads, branch = (for_second, *for_losses), block.feedforward_branch
            added, grad, from_feedforward = _undo(
                branch, feedforward_random, streams.first, grads, parameters, ctx.layers
            )
            streams.second, for_first = streams.second - added, for_first + grad
            branch = partial(block.attention_branch, context=ctx.context)
            added, grad, from_attention = _undo(branch, attention_random, streams.second, (for_first,), parameters)
            streams.first, for_second = streams.first - added, for_second + grad
        return for_first, for_second, None, None, None, *map(_sum, from_feedforward, from_attention)


class _EndContext(SavedTensors):
    streams: Streams


class _End(Function):
    """The mean of the streams, which are stored here only: the backward pass starts from them."""

    @staticmethod
    def forward(ctx: _EndContext, first: Tensor, second: Tensor, streams: Streams) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.streams = streams
        return (first + second) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: _EndContext, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.streams.first, ctx.streams.second = ctx.saved_tensors
        return grad / 2, grad / 2, None


def _undo(
    branch: Branch,
    random: RandomState,
    x: Tensor,
    grads: tuple[Tensor, ...],
    parameters: tuple[nn.Parameter, ...],
    layers: Sequence[AuxiliaryLossLayer] = (),
) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    """What ``branch`` had added to the other stream, and the gradients of x and of the parameters through it.

    ``grads`` are the gradients of what it added, and of the auxiliary losses of its ``layers``.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        outs = (random.replay(branch, x), *_losses(layers))
    # A branch may be constant, as that of no feed-forward network is.
    pairs = [(out, grad.to(out.dtype)) for grad, out in zip(grads, outs, strict=True) if out.requires_grad]
    if not pairs:
        return outs[0], torch.zeros_like(x), [None] * len(parameters)
    depending, upstream = zip(*pairs, strict=True)
    for_x, *others = torch.autograd.grad(depending, (x, *parameters), upstream, allow_unused=True)
    return outs[0].detach(), torch.zeros_like(x) if for_x is None else for_x, others


def _recording_layers(block: Reversible) -> list[AuxiliaryLossLayer]:
    """The layers of the feed-forward network that recorded an auxiliary loss in this pass."""
    return [layer for layer in auxiliary_layers(block.feedforward) if layer.collecting and layer.recorded]


def _losses(layers: Sequence[AuxiliaryLossLayer]) -> list[Tensor]:
    """The auxiliary losses that each layer recorded last."""
    return [value for layer in layers for _, value in layer.recorded[-1].losses.values()]


def _replace_losses(layers: Sequence[AuxiliaryLossLayer], losses: Sequence[Tensor]) -> None:
    """Replace the recorded losses by the outputs of the autograd step, which have its gradient."""
    left = iter(losses)
    for layer in layers:
        *earlier, last = layer.recorded
        last = last._replace(losses={name: (factor, next(left)) for name, (factor, _) in last.losses.items()})
        layer.recorded = (*earlier, last)


@contextmanager
def _recording(layers: Sequence[AuxiliaryLossLayer]) -> Iterator[None]:
    """Let the layers record their losses during the recomputation, and clear them afterwards."""
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
    from torch.distributed.tensor import DTensor  # a slow import

    trained = [parameter for parameter in block.parameters() if parameter.requires_grad]
    if any(isinstance(parameter, DTensor) for parameter in trained):
        raise UserError(
            "reversible blocks cannot be sharded: FSDP frees a block's weights after its first forward pass; "
            "use --model.block pre-norm --train.checkpointing true for several processes"
        )
    return trained


def _precision(device: str) -> Callable[[], AbstractContextManager]:
    """The current autocast settings for later, without the cache of casts: a cached cast has no graph to its weight."""
    enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype, enabled, cache_enabled=False)


class ReversibleStack(Stack):
    """Runs reversible blocks. Activations are always recomputed, so ``recompute`` changes nothing."""

    compilable = False  # a compiler would store the activations of every block

    def forward(self, x: Tensor, contexts: Sequence[AttentionContext], *, recompute: bool = False) -> Tensor:
        layers, first, second = cast(list[Reversible], self.layers), x, x
        decoding = contexts[0].decode is not None
        if decoding or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            for block, context in zip(layers, contexts, strict=True):
                first, second = block(first, second, context)
            return (first + second) / 2
        streams = Streams()
        for block, context in zip(layers, contexts, strict=True):
            first, second, *losses = _Through.apply(first, second, block, context, streams, *_trained(block))
            _replace_losses(_recording_layers(block), losses)
        return _End.apply(first, second, streams)


@dataclass(frozen=True)
class ReversibleConfig(BlockConfig, kind="reversible"):
    """Two streams whose inputs are recomputed from their outputs: memory does not grow with depth."""

    block = Reversible

    def build(self, *parts, **named) -> Block:
        if named.get("cross") is not None:
            raise UserError("reversible blocks have no cross-attention; use --model.block pre-norm")
        return super().build(*parts, **named)

    def stack(self, blocks: Iterable[Block], repeat: int = 1) -> Stack:
        return ReversibleStack(blocks, repeat)
