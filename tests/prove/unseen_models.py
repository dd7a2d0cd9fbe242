"""Models of the unseen faults: those of plain PyTorch first, then those of this library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fault_torch import HEADS, LENGTH, VOCABULARY, WIDTH, Layer, Plain
from torch import Tensor, nn

from regard.attention import AnySlots, Call, Out, Packed, Plan, Slots
from regard.attention.backends.reference import Reference
from regard.attention.slots import EMPTY
from regard.models import GPT, ConvolutionConfig, GPTConfig
from regard.models.convolution import Convolution
from regard.nn import CausalConvolution


class Turned(Layer):
    """A layer with rotary positions (Su et al. 2021, eq. 34). From ``trained`` tokens on the base grows with the text.

    That is dynamic scaling (huggingface/transformers#24653): the token that makes a text longer than the model was
    trained for turns all tokens before it anew.
    """

    base, factor, trained = 100.0, 4.0, 16

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, D]
        q, k = self.rotation(q), self.rotation(k)
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, self.nothing).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.think(x)

    def turn(self, x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        longer = max(self.factor * length / self.trained - (self.factor - 1), 1.0)
        base = self.base * longer ** (width / (width - 2))
        angle = torch.arange(length)[:, None] * base ** (-torch.arange(0, width, 2) / width)
        (a, b), cos, sin = x.chunk(2, dim=-1), angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Steady(Turned):
    """The sound twin: no text is longer than what it was trained for."""

    trained = 10**9


class Rotary(Plain):
    """Positions are in the layers and not in the embedding."""

    def positioned(self, x: Tensor, places: Tensor) -> Tensor:
        return x


class StretchedRotary(Rotary):
    layer = Turned


class SteadyRotary(Rotary):
    layer = Steady


class OverRowsAndTime(nn.BatchNorm1d):
    """Batch norm (Ioffe & Szegedy 2015) of [B, N, C]: in training mean and variance are over all rows and places."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class BatchNormed(Layer):
    def __init__(self):
        super().__init__()
        self.norm = OverRowsAndTime(WIDTH)


class MeansOfTheFuture(Plain):
    """In evaluation the running means are used, and nothing is wrong."""

    layer = BatchNormed


class HeadsBeforeRows(Layer):
    """The mask is repeated for the heads as rows x heads of attention want it, but in the order heads x rows.

    So head h of row b gets the mask of another row, unless all rows have the same one.
    """

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        each = seen.expand(len(x), -1, -1, -1).squeeze(1)  # [B, N, N]
        return super().forward(x, each.repeat(HEADS, 1, 1).unflatten(0, (len(x), HEADS)))


class MixedUpMasks(Plain):
    layer = HeadsBeforeRows


class RowsForTime(nn.Module):
    """PyTorch's own encoder, which takes [N, B, C] unless told otherwise, is given [B, N, C].

    Every token attends to those at the same place of the other rows. Any shape fits, so nothing complains.
    """

    def __init__(self, batch_first: bool = False):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))))


class GuessedBoundaries(GPT):
    """Where a packed document begins is guessed from the positions: there they fall.

    After a document of one token they do not, since 0 follows 0: the next document sees it.
    """

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        if isinstance(slots, Packed):
            falls = slots.phase.diff(dim=1, prepend=slots.phase[:, :1]) < 0
            segment = torch.where(slots.segment == EMPTY, EMPTY, falls.cumsum(1))
            slots = Slots(torch.arange(slots.length)[None].expand_as(segment), segment, slots.phase)
        return super().features(tokens, slots)


class Wiped(CausalConvolution):
    """Several tokens at once are right themselves, but what is kept of them is filled up with zeros from the left.

    If they are fewer than the convolution reaches back, what came before them is forgotten: those after them miss it.
    """

    def step(self, x: Tensor, past: Tensor, position: Tensor, lengths: Tensor | None = None) -> Tensor:
        out = super().step(x, past, position, lengths)
        if x.shape[1] > 1:
            real = torch.full_like(position, x.shape[1]) if lengths is None else lengths
            since = real[:, None] + torch.arange(-self.reach, 0)  # [B, reach], counted from the first of x
            places = self._places(position[:, None] + since)
            past.scatter_(1, places, past.gather(1, places) * (since >= 0)[:, :, None])
        return out


class WipedByShortPieces(Convolution):
    def __init__(self, config: ConvolutionConfig):
        super().__init__(config)
        for block, dilation in zip(self._blocks(), config.dilations(), strict=True):
            old = block.convolution
            block.convolution = Wiped(old.inputs, old.mix.out_features, kernel=config.kernel, dilation=dilation)


class Unscaled(torch.autograd.Function):
    """Nothing forward; backward the factor of the scores is taken out of the gradient."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return k.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.factor, None


class UnscaledKeys(Reference):
    """A kernel with a backward pass written by hand: it scales the gradient of the queries and forgets the keys'."""

    name = "unscaled"

    def prepare(self, plan: Plan, device: torch.device) -> None:
        return None

    def run(self, call: Call) -> Out:
        return super().run(call._replace(k=Unscaled.apply(call.k, call.factor)))


@dataclass(frozen=True)
class UnscaledConfig(GPTConfig, kind="test-unscaled"):
    """A GPT on that kernel."""

    def make(self) -> GPT:
        return ByHand(self)


class ByHand(GPT):
    def __init__(self, config: GPTConfig):
        super().__init__(config)
        for block in self._layers():
            block.attention.mechanism.backend = UnscaledKeys()  # type: ignore[assignment]
