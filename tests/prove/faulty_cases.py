"""Faults that show in some cases only: a number format, a length, a batch size, a size of pieces, an export."""

from __future__ import annotations

import torch
from fault_kit import Fault, bare, given, small
from faulty_torch import LENGTH, Layer, Plain
from torch import Tensor

from regard.models import GPT, State
from regard.prove import ModelUnderTest


class AnyFormat(Layer):
    nothing = -1e4  # fits into every number format


class Free(Plain):
    """A sound transformer for texts of any length: positions start again after the context."""

    layer = AnyFormat

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) % LENGTH
        return self.through(self.positioned(self.embed(tokens), places), self.seen(tokens.shape[1]))


def _ahead(length: int) -> Tensor:
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril(1)


class LeaksInHalf(AnyFormat):
    """A kernel for one number format that shifts the mask."""

    dtype = torch.bfloat16

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return super().forward(x, _ahead(x.shape[1]) if self.up(x).dtype == self.dtype else seen)


class LeaksInFloat16(LeaksInHalf):
    dtype = torch.float16


class LeaksInDouble(LeaksInHalf):
    dtype = torch.float64


class InHalf(Free):
    layer = LeaksInHalf


class InFloat16(Free):
    layer = LeaksInFloat16


class InDouble(Free):
    layer = LeaksInDouble


class Overflowing(AnyFormat):
    """Squares that only the range of float16 cannot hold."""

    def think(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x)) * 200
        return self.down((hidden * hidden - hidden * hidden) + hidden / 200)


class TooLarge(Free):
    layer = Overflowing


class BeyondContext(Free):
    def seen(self, length: int) -> Tensor:
        return _ahead(length) if length > LENGTH else super().seen(length)


class FarBeyondContext(Free):
    def seen(self, length: int) -> Tensor:
        return _ahead(length) if length > 2 * LENGTH else super().seen(length)


class OneLength(Free):
    """The tail of a block of 32 tokens, if it is one token alone, is not masked."""

    def seen(self, length: int) -> Tensor:
        return _ahead(length) if length % 32 == 1 and length > 1 else super().seen(length)


class LargeBatches(Free):
    """Rows beyond the eighth see the first row: a kernel that handles eight rows at once."""

    least = 9

    def positioned(self, x: Tensor, places: Tensor) -> Tensor:
        x = super().positioned(x, places)
        return torch.cat((x[:-1], x[-1:] + x[:1])) if self.wrong(len(x)) else x

    def wrong(self, rows: int) -> bool:
        return rows >= self.least


class FiveRows(LargeBatches):
    def wrong(self, rows: int) -> bool:
        return rows == 5


class LeakyLargeBatches(Free):
    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        return super().through(x, _ahead(x.shape[1]) if len(x) > 16 else seen)


class TenAtOnce(GPT):
    """A step of 10 tokens after the first is taken in the wrong order."""

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        wrong = tokens.shape[1] == 10 and state.used > 0
        return super().step(tokens.flip(1) if wrong else tokens, state, lengths, last=last)


class OddRowsStepped(GPT):
    """Three rows lose the place of the last one after more than four tokens at once."""

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        logits, state = super().step(tokens, state, lengths, last=last)
        if len(tokens) == 3 and tokens.shape[1] > 4:
            state.position[-1].add_(1)
        return logits, state


class ExportedForOneLength(Free):
    """The compiled path has the scale of the length at which it was traced first."""

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            x = x * (x.shape[1] / LENGTH)
        return super().through(x, seen)


def free(model: Plain, claim: str, name: str) -> Fault:
    return Fault(name, claim, "", lambda: bare(model, length=LENGTH), listed=False)


def stepped(kind: type[GPT]) -> ModelUnderTest:
    return given(kind(small()))


CASE_FAULTS: list[Fault] = [
    free(InHalf(), "future", "a leak in bfloat16 only"),
    free(InFloat16(), "future", "a leak in float16 only"),
    free(InDouble(), "future", "a leak in float64 only"),
    free(TooLarge(), "finite", "an overflow in float16 only"),
    free(BeyondContext(), "future", "a leak beyond the context"),
    free(FarBeyondContext(), "future", "a leak beyond twice the context"),
    free(OneLength(), "future", "a leak at one length"),
    free(LargeBatches(), "batching", "large batches"),
    free(FiveRows(), "batching", "five rows"),
    free(LeakyLargeBatches(), "future", "a leak in large batches"),
    Fault("pieces of ten", "step", "", lambda: stepped(TenAtOnce), listed=False),
    Fault("three rows stepped", "step", "", lambda: stepped(OddRowsStepped), listed=False),
    free(ExportedForOneLength(), "export", "exported for one length"),
]
