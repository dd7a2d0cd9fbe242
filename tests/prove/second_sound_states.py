"""Second held-out list: sound convolutions, recurrences and models of the library's contract."""

import random

import torch
from second_held_out_contract import PairConfig, WindowedConfig
from second_held_out_kit import Block, Decoder, seeded, under_test
from second_held_out_texts import text_data
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import GPTConfig
from regard.prove import ModelUnderTest
from regard.tasks import LanguageTask

SOUND = Entries()


class LongConv(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.decay, self.rate = nn.Parameter(torch.rand(width) * 0.2 + 0.02), nn.Parameter(torch.rand(width) * 2)
        self.gate, self.o = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask=None, bias=None) -> Tensor:
        n, wide = x.shape[1], torch.promote_types(x.dtype, torch.float32)
        t = torch.arange(n, device=x.device, dtype=wide)[:, None]
        kernel = torch.exp(-t * self.decay.to(wide)) * torch.cos(t * self.rate.to(wide))
        spectrum = torch.fft.rfft(x.to(wide), n=2 * n, dim=1) * torch.fft.rfft(kernel, n=2 * n, dim=0)
        y = torch.fft.irfft(spectrum, n=2 * n, dim=1)[:, :n].to(x.dtype)
        return self.o(y * torch.sigmoid(self.gate(x)))


@SOUND()
def fft_convolution():
    """Convolutions as long as the row by FFT, padded to twice its length."""
    return under_test(lambda v: Decoder(v, block=lambda w, h: Block(w, h, LongConv(w))), 31, 24)


class CharacterConv(nn.Module):
    def __init__(self, vocabulary: int, width: int = 24):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=2 * d, dilation=d) for d in (1, 2, 4, 8))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.convs:
            x = x + F.glu(conv(x)[..., : x.shape[2]], dim=1)  # padded on both sides, the right end cut off
        return self.head(x.transpose(1, 2))


@SOUND()
def character_cnn():
    """Dilated gated convolutions, padded on both sides and cut."""
    return under_test(CharacterConv, 67, 24)


class Recurrence(nn.Module):
    """Base of models with a fixed-size state: `run(tokens, state)` to logits and the states after every token."""

    def run(self, tokens: Tensor, state):
        raise NotImplementedError

    def empty(self, batch: int):
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        return self.run(tokens, self.empty(len(tokens)))[0]

    def start(self, batch: int, capacity: int, **settings):
        return self.empty(batch)

    @torch.no_grad()
    def step(self, tokens: Tensor, state, lengths: Tensor | None = None, *, last: bool = False):
        logits, after = self.run(tokens, state)
        count = torch.full((len(tokens),), tokens.shape[1], device=tokens.device) if lengths is None else lengths
        rows, end = torch.arange(len(tokens), device=tokens.device), (count - 1).clamp(min=0)

        def at(old, new):
            return torch.where((count > 0).view(-1, *[1] * (old.ndim - 1)), new[rows, end], old)

        state = tuple(at(old, new) for old, new in zip(state, after, strict=True))
        return (logits[rows, end][:, None] if last else logits), state


class MinGRU(Recurrence):
    """h_t = (1 - z_t) h_(t-1) + z_t g(c_t), all at once in logarithms (Heinsen 2023; Feng et al. 2024)."""

    def __init__(self, vocabulary: int, width: int = 32, layers: int = 2):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))

    def empty(self, batch: int):
        like = self.embed.weight
        return tuple(like.new_full((batch, like.shape[1]), 0.5) for _ in self.gates)

    def run(self, tokens, state):
        x, after = self.embed(tokens), []
        for gate, first in zip(self.gates, state, strict=True):
            z, c = gate(x).chunk(2, -1)
            z, c = (y.to(torch.promote_types(y.dtype, torch.float32)) for y in (z, c))
            value = torch.where(c >= 0, torch.log(F.relu(c) + 0.5), -F.softplus(-c)) - F.softplus(-z)
            kept = F.pad((-F.softplus(z)).cumsum(1), (0, 0, 1, 0))
            value = torch.cat((first[:, None].to(value.dtype).log(), value), 1)
            h = torch.exp(kept + torch.logcumsumexp(value - kept, 1))[:, 1:].to(x.dtype)
            after.append(h)
            x = x + h
        return self.head(x), after


@SOUND()
def mingru_scan():
    """MinGRU by a parallel scan, with a stepper."""
    model = seeded(MinGRU, 31, seed=12)
    return ModelUnderTest(model, vocabulary=31, length=24, stepper=model)


class LinearState(Recurrence):
    """phi(q) S / phi(q) z with S, z sums over the past: in a matrix form, without a loop."""

    def __init__(self, vocabulary: int, width: int = 16):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.qkv = nn.Linear(width, 3 * width)

    def empty(self, batch: int):
        like, width = self.embed.weight, self.embed.weight.shape[1]
        return like.new_zeros(batch, width, width + 1), like.new_zeros(batch, width)

    def run(self, tokens, state):
        before = state[1]
        e = self.embed(tokens)
        shifted = torch.cat((before[:, None].to(e.dtype), e[:, :-1]), 1)  # token shift, so that order matters
        q, k, v = self.qkv(e + 0.5 * shifted).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        sums = (k[..., None] * v[:, :, None]).cumsum(1) + state[0][:, None].to(k.dtype)
        y = (q[:, :, None] @ sums)[:, :, 0]
        return self.head(e + y[..., :-1] / y[..., -1:]), (sums, e)


@SOUND()
def linear_attention_state():
    """Linear attention as a state of fixed size, with token shift and a stepper."""
    model = seeded(LinearState, 31, seed=12)
    return ModelUnderTest(model, vocabulary=31, length=20, stepper=model)


class WKV(nn.Module):
    """RWKV's time mixing: for each channel a softmax over the past, with a decay and a bonus for the token itself."""

    def __init__(self, width: int):
        super().__init__()
        self.mix, self.decay, self.bonus = (nn.Parameter(torch.rand(width)) for _ in range(3))
        self.r, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask=None, bias=None) -> Tensor:
        x = torch.lerp(F.pad(x[:, :-1], (0, 0, 1, 0)), x, self.mix.to(x.dtype))
        place = torch.arange(x.shape[1], device=x.device)
        distance = (place[:, None] - place)[..., None]  # [N, N, 1]
        added = torch.where(distance == 0, self.bonus, -(distance - 1) * self.decay)
        s = (self.k(x)[:, None] + added).masked_fill(distance < 0, float("-inf"))  # [B, N, N, C]
        mixed = (s.softmax(2) * self.v(x)[:, None]).sum(2)
        return self.o(torch.sigmoid(self.r(x)) * mixed.to(x.dtype))


@SOUND()
def rwkv_token_shift():
    """RWKV: token shift, and a decayed softmax for each channel."""
    return under_test(lambda v: Decoder(v, width=16, block=lambda w, h: Block(w, h, WKV(w))), 31, 16)


class Narrow(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 1), nn.Linear(1, vocabulary)
        self.cell = nn.GRU(1, 1, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(tokens))[0])


@SOUND()
def width_one():
    """A GRU with one unit."""
    return under_test(Narrow, 13, 12)


@SOUND()
def sliding_state():
    """A network over the last five tokens, its state a ring of them (contract)."""
    return ModelUnderTest(seeded(WindowedConfig(layers=2).build, seed=12))


@SOUND()
def encoder_decoder():
    """A source as a bag with positions, a recurrent decoder that attends to it (contract)."""
    return ModelUnderTest(seeded(PairConfig().build, seed=12))


@SOUND()
def multi_query_sums():
    """Multi-query attention, trained on a formulaic text: sums, no line twice (config, task, data, tokenizer)."""

    lines = [f"{a}+{b}={a + b}\n" for a in range(80) for b in range(80)]
    random.Random(1).shuffle(lines)
    data = text_data("".join(lines), context=32)
    config = GPTConfig(vocabulary=data.vocabulary, context=32, layers=2, heads=4, kv_heads=1, width=32, zero_init=False)
    return ModelUnderTest(seeded(config.build, seed=12), task=LanguageTask(), data=data, tokenizer=data.tokenizer)
