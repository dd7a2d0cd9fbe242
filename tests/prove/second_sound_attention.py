"""Second held-out list: sound models of unusual logits, positions and numbers."""

import math

import torch
from second_held_out_kit import Attention, Block, Decoder, causal, under_test
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

SOUND = Entries()


class Grammar(Decoder):
    allowed: Tensor

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        allowed = torch.rand(vocabulary, vocabulary) < 0.4
        self.register_buffer("allowed", allowed | torch.eye(vocabulary, dtype=torch.bool))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).masked_fill(~self.allowed[tokens], float("-inf"))


@SOUND()
def forbidden_tokens():
    """Logits of -inf where a grammar forbids the next token after the current one."""
    return under_test(Grammar, 23, 16)


@SOUND()
def wide_logits():
    """8,009 tokens and a width of 8."""
    return under_test(lambda v: Decoder(v, width=8, heads=2, layers=1), 8009, 12)


class Capped(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        return 3 * torch.tanh(super().forward(tokens) / 3)


class CappedAttention(Attention):
    def mix(self, q, k, v, mask: Tensor, bias):
        s = 2 * torch.tanh(q @ k.transpose(-1, -2) / 2)
        return s.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@SOUND()
def soft_caps():
    """Tanh caps on scores and logits."""
    return under_test(lambda v: Capped(v, block=lambda w, h: Block(w, h, CappedAttention(w, h))), 31, 20)


class Pointer(Decoder):
    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.vocabulary, self.gate, self.query = vocabulary, nn.Linear(32, 1), nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.inputs(tokens), self.mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        weights = (self.query(x) @ x.transpose(1, 2) / math.sqrt(32)).masked_fill(~mask, float("-inf")).softmax(-1)
        copied = weights @ F.one_hot(tokens, self.vocabulary).to(weights.dtype)
        gate = torch.sigmoid(self.gate(x))
        return torch.log(gate * copied + (1 - gate) * self.head(x).softmax(-1) + 1e-7)


@SOUND()
def pointer_head():
    """Log of a mixture of a softmax and of copying earlier tokens."""
    return under_test(Pointer, 31, 20)


class FromEnd(Decoder):
    """A linear bias of the key's distance from the END of the row: the softmax does not see the common shift."""

    def inputs(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)

    def bias(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        distance = torch.arange(n - 1, -1, -1, device=tokens.device)
        slopes = 2.0 ** -torch.arange(1, 5, device=tokens.device)
        return -(slopes[:, None, None] * distance).to(self.embed.weight.dtype)


@SOUND()
def alibi_from_end():
    """ALiBi with distances to the end of the row, which equals ALiBi."""
    return under_test(FromEnd, 31, 24)


class Buckets(Decoder):
    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.table = nn.Embedding(12, 4)

    def inputs(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)

    def bias(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        distance = (place[:, None] - place).clamp(min=0)
        far = 6 + (torch.log2(distance.clamp(min=6) / 6) * 2).long()
        return self.table(torch.where(distance < 6, distance, far.clamp(max=11))).permute(2, 0, 1)


@SOUND()
def t5_buckets():
    """A learned bias by logarithmic buckets of distance, far ones shared."""
    return under_test(Buckets, 31, 24)


class Unordered(Decoder):
    def inputs(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)


@SOUND()
def depth_one_unordered():
    """One causal layer without positions: the past is a set."""
    return under_test(lambda v: Unordered(v, layers=1), 31, 16, positional=False)


class Bigram(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


@SOUND()
def context_one():
    """A bigram table: the logits of a token are a row of it."""
    return under_test(Bigram, 19, 12, positional=False)


class TiedAll(nn.Module):
    """One matrix is embedding, projection, feed-forward network and head; learned positions end at 64."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, 32) * 0.3)
        self.place = nn.Embedding(64, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        if n > 64:
            raise ValueError(f"{n} tokens, but positions end at 64")
        x = self.weight[tokens] + self.place(torch.arange(n, device=tokens.device))
        for _ in range(2):
            y = F.layer_norm(x, (32,))
            s = (y @ y.transpose(1, 2) / 6).masked_fill(~causal(n, x.device), float("-inf")).softmax(-1)
            x = x + s @ y
            x = x + torch.relu(F.layer_norm(x, (32,)) @ self.weight.T) @ self.weight
        return F.layer_norm(x, (32,)) @ self.weight.T


@SOUND()
def tied_everything():
    """One matrix for embedding, layers and head; refuses more than 64 tokens."""
    return under_test(TiedAll, 29, 24)


@SOUND()
def shared_keys():
    """One key and value head for eight query heads, in plain torch."""
    return under_test(lambda v: Decoder(v, heads=8, block=lambda w, h: Block(w, h, Attention(w, h, 1))), 31, 20)


def scaled(vocabulary: int, first: float, last: float):
    model = Decoder(vocabulary)
    with torch.no_grad():
        model.embed.weight.mul_(first)
        model.head.weight.mul_(last)
        model.head.bias.mul_(last)
    return model


@SOUND()
def tiny_scale():
    """Logits of about a millionth."""
    return under_test(scaled, 31, 16, 1.0, 1e-6)


@SOUND()
def huge_scale():
    """Logits of some thousands, from embeddings a hundred times as large as usual."""
    return under_test(scaled, 31, 16, 100.0, 3e3)


@SOUND()
def double_precision():
    """Weights in float64."""
    return under_test(lambda v: Decoder(v).double(), 31, 20)


@SOUND()
def vocabulary_two():
    """Bits."""
    return under_test(Decoder, 2, 32)


class Running(nn.Module):
    """BatchNorm with running statistics: in evaluation an affine map."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.embed, self.conv = nn.Embedding(vocabulary, 24), nn.Conv1d(24, 24, 4)
        self.norm, self.head = nn.BatchNorm1d(24), nn.Linear(24, vocabulary)
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        mean.normal_()
        variance.uniform_(0.5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        return self.head(torch.relu(self.norm(x + self.conv(F.pad(x, (3, 0))))).transpose(1, 2))


@SOUND()
def running_statistics():
    """BatchNorm in evaluation mode, with statistics in buffers."""
    return under_test(Running, 31, 16)
