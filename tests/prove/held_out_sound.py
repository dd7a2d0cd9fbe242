"""Held-out sound models of unusual kinds: retrieval, experts, windows, averages."""

import math

import torch
from small_decoder import Attention, Entries, Tiny, with_attention
from torch import nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

SOUND = Entries()
V, C = 40, 32


def plain(model, length=24, **more):
    return ModelUnderTest(model.eval(), vocabulary=V, length=length, **more)


class Around(nn.Module):
    """embed, a mixer [B, N, C] -> [B, N, C], a residual, a head."""

    def __init__(self, mixer, layers=1, scale=2.0):
        torch.manual_seed(1)
        super().__init__()
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.mixers = nn.ModuleList(mixer() for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(C) for _ in range(layers))
        with torch.no_grad():
            self.head.weight.mul_(scale)

    def forward(self, tokens):
        x = self.embed(tokens)
        for mixer, norm in zip(self.mixers, self.norms, strict=False):
            x = x + mixer(norm(x))
        return self.head(x)


@SOUND()
def fft_convolution():
    """A long convolution by FFT with zero padding (Hyena, S4): causal, though rounding spreads over the whole row."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Parameter(torch.randn(C, 64) * 0.3)

        def forward(self, x):
            n = x.shape[1]
            a = torch.fft.rfft(x.transpose(1, 2), n=2 * n)
            y = torch.fft.irfft(a * torch.fft.rfft(self.filter[:, :n], n=2 * n), n=2 * n)[..., :n]
            return F.gelu(y.transpose(1, 2))

    return plain(Around(Mixer))


@SOUND()
def forbidden_tokens():
    """A head that forbids three tokens by logits of -inf."""

    class Model(Tiny):
        def forward(self, tokens):
            logits = super().forward(tokens)
            return logits.masked_fill(torch.arange(V) < 3, -math.inf)

    return plain(Model(V))


@SOUND()
def min_gru():
    """minGRU (Feng et al. 2024) as a parallel scan in log space, with logcumsumexp."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value = nn.Linear(C, C), nn.Linear(C, C)

        def forward(self, x):
            gate = self.gate(x)
            value = self.value(x)
            value = torch.where(value >= 0, (F.relu(value) + 0.5).log(), -F.softplus(-value))
            keep, write = -F.softplus(gate), -F.softplus(-gate) + value
            total = keep.cumsum(1)
            return (total + (write - total).logcumsumexp(1)).exp()

    return plain(Around(Mixer, 2))


class WindowAttention(Attention):
    size = 6

    def mask(self, n, x):
        return torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.size)

    def step(self, x, position, cache):
        q, k, v = self.project(x, position)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        rows, keys = q.shape[2], k.shape[2]
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows).triu(keys - rows + 1 - self.size)
        return self.merge(self.mix(q, k, v, mask)), (k[:, :, 1 - self.size :], v[:, :, 1 - self.size :])


@SOUND()
def window_state():
    """A sliding window of 6 tokens whose decoding state keeps the last 5 keys only."""
    model = with_attention(WindowAttention)(V).eval()
    return ModelUnderTest(model, vocabulary=V, length=30, stepper=model)


@SOUND()
def diagonal_state_space():
    """A diagonal state space layer (S4D): complex decays, computed as a convolution with their powers."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay, self.turn = nn.Parameter(torch.rand(C) + 0.05), nn.Parameter(torch.randn(C))
            self.read, self.skip = nn.Parameter(torch.randn(C, 2)), nn.Parameter(torch.randn(C))

        def forward(self, x):
            n = x.shape[1]
            power = torch.complex(-self.decay, self.turn)[:, None] * torch.arange(n)
            kernel = (torch.view_as_complex(self.read)[:, None] * power.exp()).real  # [C, n]
            distance = torch.arange(n)[:, None] - torch.arange(n)
            matrix = torch.where(distance >= 0, kernel[:, distance.clamp(min=0)], 0)  # [C, n, n]
            return torch.einsum("cij,bjc->bic", matrix, x) + self.skip * x

    return plain(Around(Mixer, 2))


@SOUND()
def fixed_source():
    """An encoder-decoder with a constant source sentence: cross-attention in every layer."""

    class Model(Tiny):
        def __init__(self):
            super().__init__(V)
            self.cross = nn.MultiheadAttention(C, 4, batch_first=True)
            self.register_buffer("source", torch.randint(V, (1, 9)))

        def forward(self, tokens):
            memory, position = self.embed(self.source), torch.arange(tokens.shape[1])[None]
            memory = memory.expand(len(tokens), -1, -1)
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, position)
                x = x + self.cross(x, memory, memory, need_weights=False)[0]
            return self.head(self.norm(x))

    return plain(Model())


@SOUND()
def constant_retrieval():
    """Each token retrieves its three nearest of 50 constant memory vectors (kNN-LM with a frozen store)."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.randn(50, C))
            self.values = nn.Parameter(torch.randn(50, C))
            self.before = WeightedPast()

        def forward(self, x):
            x = x + self.before(x)
            score, index = (x @ self.keys.T).topk(3, -1)
            return (score.softmax(-1)[..., None] * self.values[index]).sum(-2)

    return plain(Around(Mixer))


class WeightedPast(nn.Module):
    """The mean of the past with exponentially decaying weights."""

    def forward(self, x):
        n = x.shape[1]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        weight = torch.where(distance >= 0, 0.7 ** distance.clamp(min=0).to(x.dtype), 0)
        return (weight / weight.sum(1, keepdim=True)) @ x


@SOUND()
def exponential_average():
    """An exponential moving average as a Python loop over time (MEGA's damped EMA)."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha, self.out = nn.Parameter(torch.randn(C)), nn.Linear(C, C)

        def forward(self, x):
            alpha, state, found = self.alpha.sigmoid(), torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                state = alpha * x[:, t] + (1 - alpha) * state
                found.append(state)
            return self.out(torch.stack(found, 1))

    return plain(Around(Mixer, 2))


@SOUND()
def soft_capped():
    """Scores and logits soft-capped by tanh (Gemma 2), with weights large enough that many are saturated."""

    class Capped(Attention):
        def mix(self, q, k, v, mask):
            scores = 5 * torch.tanh(4 * q @ k.transpose(-1, -2) / 5)
            return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v

    class Model(with_attention(Capped)):
        def forward(self, tokens):
            return 3 * torch.tanh(super().forward(tokens) * 2 / 3)

    return plain(Model(V))


@SOUND()
def token_choice_experts():
    """A mixture of four experts: each token takes its two best, without a capacity."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.past, self.route = WeightedPast(), nn.Linear(C, 4)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(C, 64), nn.ReLU(), nn.Linear(64, C)) for _ in range(4))

        def forward(self, x):
            x = self.past(x)
            best, index = self.route(x).topk(2, -1)
            gate = torch.zeros(*x.shape[:2], 4, dtype=x.dtype).scatter(-1, index, best.softmax(-1))
            return sum(gate[..., e : e + 1] * expert(x) for e, expert in enumerate(self.experts))

    return plain(Around(Mixer, 2))


@SOUND()
def hash_embeddings():
    """No embedding table: a token and its predecessor are hashed into three small tables (Canine)."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(13, C) for _ in range(3))
            self.head = nn.Linear(C, V)

        def forward(self, tokens):
            before = F.pad(tokens, (1, 0), value=V)[:, :-1]
            index = tokens * 7919 + before * 104729
            x = torch.stack([table((index * (2 * i + 3) + i) % 13) for i, table in enumerate(self.tables)]).sum(0)
            return self.head(F.gelu(x))

    return plain(Model())


@SOUND()
def alibi():
    """Linear biases by distance instead of positions."""

    class Alibi(Attention):
        def project(self, x, position):
            return tuple(p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))

        def mix(self, q, k, v, mask):
            n = q.shape[2]
            slope = 2.0 ** -torch.arange(1, self.heads + 1)
            bias = -slope[:, None, None] * (torch.arange(n)[:, None] - torch.arange(n)).abs()
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias.to(q.dtype)
            return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v

    return plain(with_attention(Alibi)(V))


@SOUND()
def fixed_iterations():
    """A weight-tied equilibrium model: 12 damped iterations of one layer with the input injected."""

    class Model(Tiny):
        def forward(self, tokens):
            source, position = self.embed(tokens), torch.arange(tokens.shape[1])[None]
            x = torch.zeros_like(source)
            for _ in range(12):
                x = 0.5 * x + 0.5 * self.norm(self.layers[0](x + source, position))
            return self.head(x)

    return plain(Model(V))
