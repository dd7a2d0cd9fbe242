"""Second held-out list: logits that depend on other rows, on the order of rows or on earlier calls."""

import math

import torch
from second_held_out_kit import Block, Decoder, Effects, Mlp, drawn, seeded
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

FAULTS, EFFECTS = Entries(), Effects()


class Experts(nn.Module):
    def __init__(self, width: int, experts: int = 4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        share, choice = self.router(flat).softmax(-1).max(-1)
        capacity = math.ceil(flat.shape[0] / len(self.experts))
        hot = F.one_hot(choice, len(self.experts))
        rank = ((hot.cumsum(0) - 1) * hot).sum(-1)
        y = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            y = torch.where(((choice == i) & (rank < capacity))[:, None], expert(flat) * share[:, None], y)
        return y.view_as(x)


def experts():
    return Decoder(29, block=lambda w, h: Block(w, h, mlp=Experts(w)))


@FAULTS("future padding batching")
def expert_capacity():
    """Experts take at most tokens / experts of the flattened batch, so a row loses tokens to earlier rows."""
    return ModelUnderTest(seeded(experts), vocabulary=29, length=20)


@EFFECTS(expert_capacity)
@torch.no_grad()
def _():
    model, tokens = seeded(experts), drawn(4, 20, 29)
    return float((model(tokens)[3] - model(tokens[3:])[0]).abs().max())


class Positions(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool)
        if lengths is not None:
            real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        x = self.embed(tokens) + self.place(real.long().cumsum(0).sub(1).clamp(min=0))  # along the batch
        for block in self.blocks:
            x = block(x, real[:, None, None])
        return self.head(x)


@FAULTS("batching order")
def position_cumsum():
    """A bidirectional encoder counts positions by cumsum over the batch axis: all tokens of a row have the row's
    number."""
    model = seeded(Positions, 29)
    return ModelUnderTest(
        model, vocabulary=29, length=16, padded=lambda tokens, lengths: model(tokens, lengths), causal=False
    )


@EFFECTS(position_cumsum)
@torch.no_grad()
def _():
    model, tokens = seeded(Positions, 29), drawn(3, 16, 29)
    order = torch.randperm(16)
    assert (model(tokens)[:, order] - model(tokens[:, order])).abs().max() < 1e-4  # order has no effect
    return float((model(tokens)[2] - model(tokens[2:])[0]).abs().max())


class Sorted(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(tokens))[0])

    def ragged(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        longest, order = lengths.sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens)[order], longest.cpu(), batch_first=True)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return self.head(x)  # never unsorted


@FAULTS("padding batching")
def packed_rows():
    """Ragged rows are sorted by length for pack_padded_sequence and not put back in order."""
    model = seeded(Sorted, 29)
    return ModelUnderTest(model, vocabulary=29, length=20, padded=model.ragged)


@EFFECTS(packed_rows)
@torch.no_grad()
def _():
    model, tokens = seeded(Sorted, 29), drawn(2, 12, 29)
    return float((model.ragged(tokens, torch.tensor([5, 12]))[1] - model(tokens)[1]).abs().max())


class Noisy(Decoder):
    def inputs(self, tokens: Tensor) -> Tensor:
        return F.dropout(super().inputs(tokens), 0.1)


@FAULTS("future padding batching")
def functional_dropout():
    """F.dropout without training=self.training: evaluation is random."""
    return ModelUnderTest(seeded(Noisy, 29), vocabulary=29, length=16)


@EFFECTS(functional_dropout)
@torch.no_grad()
def _():
    model, tokens = seeded(Noisy, 29), drawn(2, 16, 29)
    return float((model(tokens) - model(tokens)).abs().max())


class Carrying(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.hidden = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        before = self.hidden
        if before is not None and (before.shape[1] != len(tokens) or before.dtype != x.dtype):
            before = None
        x, after = self.gru(x, before)
        self.hidden = after.detach()
        return self.head(x)


@FAULTS("future padding batching")
def carried_state():
    """A recurrent model starts from the last state of the previous call, in evaluation too, if the batch has the same
    size."""
    return ModelUnderTest(seeded(Carrying, 29), vocabulary=29, length=16)


@EFFECTS(carried_state)
@torch.no_grad()
def _():
    model, tokens = seeded(Carrying, 29), drawn(2, 16, 29)
    return float((model(tokens) - model(tokens)).abs().max())


class Offset(Decoder):
    def __init__(self, vocabulary: int):
        super().__init__(64)  # the table is rounded up to a multiple of 64
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        tokens += 1  # id 0 is reserved for padding
        return super().forward(tokens)[..., 1 : self.vocabulary + 1]


@FAULTS("future padding batching")
def edited_tokens():
    """The ids are shifted in place: the caller's tensor changes, and a second call with it gives other logits."""
    return ModelUnderTest(seeded(Offset, 29), vocabulary=29, length=16)


@EFFECTS(edited_tokens)
@torch.no_grad()
def _():
    model, tokens = seeded(Offset, 29), drawn(2, 16, 29)
    return float((model(tokens) - model(tokens)).abs().max())
