"""Faults in single layers of plain PyTorch models: positions, norms, masks, the order of axes."""

from __future__ import annotations

import torch
from faulty_torch import HEADS, LENGTH, VOCABULARY, WIDTH, Layer, Plain
from torch import Tensor, nn


class Turned(Layer):
    """A layer with rotary positions (Su et al. 2021, eq. 34). From ``trained`` tokens on the base grows with the text.

    That is dynamic scaling (huggingface/transformers#24653): the token that makes a text longer than the model was
    trained for changes the rotation of all tokens before it.
    """

    base, factor, trained = 100.0, 4.0, 16

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, D]
        q, k = self.turn(q), self.turn(k)
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
    """PyTorch's own encoder, which takes [N, B, C] by default, is given [B, N, C].

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
