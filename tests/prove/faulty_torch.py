"""Faults in models of plain PyTorch: each overrides one method of a sound transformer, `Plain`.

They come to the judge as bare callables, as the models of other libraries do.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, LENGTH, WIDTH, HEADS = 11, 24, 16, 2
Model = TypeVar("Model", bound=nn.Module)


def randomized(model: Model, seed: int = 5) -> Model:
    """The model with random weights everywhere, gains and biases included: at its start much of a model is zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gain = name.endswith(("gain", "norm.weight"))
        spread = 1.0 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.2
        spread = 1.0 if "embed" in name or "place" in name else spread
        parameter.data = float(gain) + spread * torch.randn(parameter.shape, generator=generator)
    return model


class Layer(nn.Module):
    """Pre-norm attention and feed-forward network (Vaswani et al. 2017; Xiong et al. 2020)."""

    nothing = torch.finfo(torch.float32).min  # the score of what is not seen: finite, so that a blind row is no NaN

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:  # [B, N, C], bool [1 | B, 1, N, N]
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, D]
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, self.nothing).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.think(x)

    def think(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(self.norm(x))))


class Plain(nn.Module):
    """A sound transformer with learned positions, causal or not: tokens [B, N] to logits [B, N, V]."""

    layer: type[Layer] = Layer

    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(self.layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return self.through(self.positioned(self.embed(tokens), places), self.seen(tokens.shape[1]))

    def seen(self, length: int) -> Tensor:
        """Who sees whom, [1, 1, N, N]."""
        every = torch.ones(1, 1, length, length, dtype=torch.bool)
        return every.tril() if self.causal else every

    def positioned(self, x: Tensor, places: Tensor) -> Tensor:
        return x + self.place(places)

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, seen)
        return self.head(x)

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The same for rows of which only the first ``lengths`` tokens are real; inside, the padding goes to the left.

        So do those who decode a batch of prompts: all rows end at the same place.
        """
        length = tokens.shape[1]
        number = torch.arange(length) - (length - lengths)[:, None]  # [B, N], of the real token there; below 0: padding
        x = self.positioned(self.embed(tokens.gather(1, number.clamp(min=0))), self.places(number))
        logits = self.through(x, self.seen(length) & (number >= 0)[:, None, None])
        back = (torch.arange(length) + (length - lengths)[:, None]).clamp(max=length - 1)
        return logits.gather(1, back[..., None].expand_as(logits))

    def places(self, number: Tensor) -> Tensor:
        """The positions of a left-padded row, from the numbers of its real tokens."""
        return number.clamp(min=0)


class OneTooFar(Plain):
    """The mask begins one diagonal too high: each token sees the one it has to predict."""

    def seen(self, length: int) -> Tensor:
        return torch.ones(1, 1, length, length, dtype=torch.bool).tril(1)


class UnmaskedForWeights(Plain):
    """A request for the weights takes another path, written later, that lacks the mask."""

    def forward(self, tokens: Tensor, weights: bool = False) -> Tensor:
        self.causal = not weights
        return super().forward(tokens)


class MaskedInTraining(Plain):
    """The mask hangs on the training flag, as if evaluation had no future to hide."""

    def seen(self, length: int) -> Tensor:
        every = torch.ones(1, 1, length, length, dtype=torch.bool)
        return every.tril() if self.training else every


class SortedBuckets(Plain):
    """Tokens attend, causally, within their bucket; but buckets of equal size are cut from the order of *all* tokens.

    A later token moves the borders, and the past with them: sorting has no gradient to show it. Balanced clusters
    have this flaw (Roy et al. 2021, sec. 4.1).
    """

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        rank = x[..., 0].argsort(-1).argsort(-1)  # [B, N]
        bucket = rank * 4 // x.shape[1]
        return super().through(x, seen & (bucket[:, None, :, None] == bucket[:, None, None, :]))


class PaddingSeen(Plain):
    """The padding mask reaches the first layer only."""

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.layers[0](x, seen)
        for layer in self.layers[1:]:
            x = layer(x, self.seen(x.shape[1]))
        return self.head(x)


class CountedFromPadding(Plain):
    """Positions of a left-padded row are counted from its first slot, and not from its first token."""

    def places(self, number: Tensor) -> Tensor:
        return torch.arange(number.shape[1]).expand_as(number)


class Infinite(Layer):
    """What is not seen scores -inf. A row of padding that sees nothing is NaN, and by 0 x NaN all who see past it."""

    nothing = -torch.inf


class BlindRows(Plain):
    layer = Infinite


class Unpositioned(Plain):
    """Positions are looked up and added, and the sum is thrown away."""

    def positioned(self, x: Tensor, places: Tensor) -> Tensor:
        torch.add(x, self.place(places))
        return x


class Experts(Layer):
    """Each token goes to one of two experts (Fedus et al. 2022, sec. 2.1), each with a buffer of a fixed size.

    The buffers serve the whole batch, first come, first served: what comes too late gets no expert.
    """

    seats = LENGTH  # of each expert: enough for one row, not for a batch

    def think(self, x: Tensor) -> Tensor:
        flat = self.norm(x).transpose(0, 1).flatten(0, 1)  # [N B, C]: earlier tokens come first, of whatever row
        chosen = F.one_hot((flat[:, 0] > 0).long(), 2)
        served = chosen.cumsum(0).mul(chosen).amax(-1) <= self.seats
        hidden = F.relu(self.up(flat)).unflatten(-1, (2, -1)) * chosen[..., None]
        return (self.down(hidden.flatten(1)) * served[:, None]).unflatten(0, (-1, len(x))).transpose(0, 1)


class RoomyExperts(Experts):
    """The sound twin: no token is dropped."""

    seats = 10**9


class CrowdedBatch(Plain):
    layer = Experts


class RoomyBatch(Plain):
    layer = RoomyExperts


class Stock(nn.Module):
    """PyTorch's own encoder made causal by its own mask."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        mask = torch.full((tokens.shape[1], tokens.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        return self.head(self.encoder(x, mask=mask, is_causal=True))
