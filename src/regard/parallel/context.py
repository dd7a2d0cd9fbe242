"""Context parallelism: the ranks of a group share the tokens of each row, and attention is a ring over them.

Everything but attention works on each token by itself, so a rank computes it for its own tokens. Their slots say where
they are in the row: masks, positions and biases are right without further code. What looks at neighbors in another way
than attention is refused.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.attention import Full, Mask, Mechanism, Plan, Range, Softmax
from regard.attention.backends.ring import Ring
from regard.attention.backends.sdpa import not_plain_softmax
from regard.attention.ring.transport import Transport
from regard.errors import UserError
from regard.models import Model
from regard.models.gpt import GPT
from regard.nn.blocks.block import Block, Stack
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts
from regard.parallel.transport import GroupTransport
from regard.parallel.world import World


def apply(model: Model, world: World) -> None:
    """Let every attention of the model read the tokens of all ranks of the context group, in place."""
    if world.layout.context == 1:
        return
    refuse(list(obstacles(model)))
    if group := world.group("context"):  # none for a plan, which needs shapes only
        connect(model, GroupTransport(group))


def connect(model: Model, transport: Transport) -> None:
    """Let every attention of the model read keys and values through ``transport``, in place."""
    ring = Ring(transport)
    for _, mechanism in model.mechanisms():
        assert isinstance(mechanism, Softmax)
        mechanism.backend = ring
    model.masks = [_WholeRow(mask, transport) if mask.needs_tokens else mask for mask in model.masks]


def positions(length: int, rank: int, size: int, *, zigzag: bool = True) -> Tensor:
    """Which tokens of a row of ``length`` a rank holds.

    Zigzag: of 2 ``size`` pieces its own and the mirror image of it, so that under a causal mask every rank has as many
    pairs to compute (Grattafiori et al. 2024, Llama 3, sec. 3.3.2). Otherwise: consecutive ones.

    >>> [positions(8, rank, 2).tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    pieces = torch.arange(length).chunk(2 * size if zigzag else size)
    return torch.cat((pieces[rank], pieces[2 * size - 1 - rank])) if zigzag else pieces[rank]


def refuse(reasons: list[str]) -> None:
    """Raise the first reason, if there is one, as an error."""
    if reasons:
        raise UserError(f"--layout.context above 1 is not possible here. {reasons[0]}; or set --layout.context 1")


def obstacles(model: Model) -> Iterator[str]:
    """Why the tokens of a row cannot be shared, each with the fix."""
    if type(model) is not GPT:
        yield f"A {type(model).__name__} mixes tokens in other ways than attention: use --model gpt"
        return
    if model.ngrams.longest > 1:
        yield "N-gram embeddings read the tokens before, which another rank has: set --model.ngrams 1"
    if type(model.blocks) is not Stack:
        yield f"The stack {type(model.blocks).__name__} runs its own backward pass: set --model.block pre-norm"
    if any(isinstance(module, nn.Dropout) and module.p for module in model.modules()):
        yield "Dropout would draw other random numbers than one process does: set --model.dropout 0"
    for _, mechanism in model.mechanisms():
        yield from _against(mechanism)
    for module in model.modules():
        if isinstance(module, Block) and module.cross is not None:
            yield "Cross-attention reads another sequence: use a model without it"
        if isinstance(module, MixtureOfExperts) and (module.config.balance or module.config.z):
            yield "The losses of experts are over whole rows: set --model.feedforward.balance 0 and z 0"
        if isinstance(module, CapacityExperts):
            yield "The capacity of experts is over whole rows: set --model.feedforward.capacity none"


def _against(mechanism: Mechanism) -> Iterator[str]:
    """Why a mechanism cannot run on keys and values that are spread over ranks."""
    if type(mechanism) is not Softmax:
        yield f"{type(mechanism).__name__} does not merge over ranks as a softmax does: set --model.attention softmax"
        return
    if mechanism.dropout:
        yield "Attention dropout would draw other random numbers than one process: set --model.attention_dropout 0"
    if mechanism.backend not in ("auto", "ring"):
        yield f"The backend is {mechanism.backend}, but the ring is one itself: set --model.backend auto"
    none, token = torch.empty(0), Range(1)
    call = mechanism.call(none, none, none, Plan(Full(), token, token, same_tokens=True))
    for reason in not_plain_softmax(call, takes_bias=True):
        yield f"In attention {reason}: set --model.attention softmax with its defaults"


class _WholeRow(Mask):
    """A mask that follows from the tokens, given those of all ranks."""

    needs_tokens = True

    def __init__(self, inner: Mask, transport: Transport):
        self.inner, self.transport = inner, transport

    def bind(self, tokens: Tensor, phases: Tensor | None = None) -> Mask:
        return self.inner.bind(self._joined(tokens), None if phases is None else self._joined(phases))

    def _joined(self, part: Tensor) -> Tensor:
        parts = torch.cat(self.transport.gather(part), dim=1)
        held = [positions(parts.shape[1], rank, self.transport.size) for rank in range(self.transport.size)]
        return parts[:, torch.cat(held).argsort().to(parts.device)]

    def __str__(self) -> str:
        return str(self.inner)
