"""Held-out sound models of unusual kinds: number formats, recurrences and linear attention."""

import math

import torch
from held_out_sound import Around, plain
from small_decoder import Attention, Entries, Tiny, with_attention
from torch import nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

SOUND = Entries()
V, C = 40, 32


@SOUND()
def int8_weights():
    """All weights are int8 with a scale per row, and activations are rounded to int8 per token."""

    class Int8(nn.Module):
        scale: torch.Tensor
        weight: torch.Tensor

        def __init__(self, linear):
            super().__init__()
            scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer("scale", scale)
            self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
            self.bias = linear.bias

        def forward(self, x):
            step = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
            rounded = (x / step).round() * step
            return F.linear(rounded, self.weight.to(x.dtype) * self.scale, self.bias)

    model = Tiny(V)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8(child))
    return plain(model)


@SOUND()
def double_precision():
    """All weights in float64."""
    return plain(Tiny(V).double())


@SOUND()
def bfloat16_weights():
    """All weights in bfloat16: a coarse but causal model."""
    return plain(Tiny(V).bfloat16())


@SOUND()
def unitary_recurrence():
    """A recurrent network with a complex unitary diagonal and complex hidden states."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.angle = nn.Parameter(torch.randn(C))
            self.into, self.out = nn.Linear(C, 2 * C), nn.Linear(2 * C, C)

        def forward(self, x):
            turn = torch.polar(torch.full_like(self.angle, 0.95), self.angle)
            drive = torch.view_as_complex(self.into(x).unflatten(-1, (C, 2)).contiguous())
            state, found = torch.zeros_like(drive[:, 0]), []
            for t in range(x.shape[1]):
                state = turn * state + drive[:, t]
                state = state / (1 + state.abs() / 4)
                found.append(torch.view_as_real(state).flatten(-2))
            return self.out(torch.stack(found, 1))

    return plain(Around(Mixer))


@SOUND()
def top_k_attention():
    """Each query attends to its four best visible keys, found by sorting."""

    class TopK(Attention):
        def mix(self, q, k, v, mask):
            scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
            ranked = scores.sort(-1, descending=True).values
            least = ranked[..., min(3, ranked.shape[-1] - 1), None]
            return scores.masked_fill(scores < least, -math.inf).softmax(-1) @ v

    return plain(with_attention(TopK)(V))


@SOUND()
def linear_attention():
    """Linear attention with elu + 1 features as cumulative sums of outer products, and the same as a state."""

    class Linear(Attention):
        def features(self, x, position):
            q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            return F.elu(q) + 1, F.elu(k) + 1, v

        def step(self, x, position, cache):
            q, k, v = self.features(x, position)
            outer, total = (k[..., :, None] * v[..., None, :]).cumsum(2), k.cumsum(2)
            if cache is not None:
                outer, total = outer + cache[0], total + cache[1]
            mixed = (q[..., None, :] @ outer)[..., 0, :] / (q * total).sum(-1, keepdim=True)
            return self.merge(mixed), (outer[:, :, -1:], total[:, :, -1:])

        def forward(self, x, position):
            return self.step(x, position, None)[0]

    model = with_attention(Linear)(V).eval()
    return ModelUnderTest(model, vocabulary=V, length=30, stepper=model)


@SOUND()
def dilated_gated_convolution():
    """WaveNet: causal gated convolutions with dilations 1, 2, 4, 8, and weight normalization."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.utils.parametrizations.weight_norm
            self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
            self.conv = nn.ModuleList(norm(nn.Conv1d(C, 2 * C, 2, dilation=2**i)) for i in range(4))

        def forward(self, tokens):
            x = self.embed(tokens).transpose(1, 2)
            for i, conv in enumerate(self.conv):
                a, b = conv(F.pad(x, (2**i, 0))).chunk(2, 1)
                x = x + a.tanh() * b.sigmoid()
            return self.head(x.transpose(1, 2))

    return plain(Model())


@SOUND()
def registers():
    """Four learned register tokens come before every row; their outputs are cut off."""

    class Model(Tiny):
        def __init__(self):
            super().__init__(V)
            self.registers = nn.Parameter(torch.randn(1, 4, C))

        def forward(self, tokens):
            x = torch.cat((self.registers.expand(len(tokens), -1, -1), self.embed(tokens)), 1)
            for layer in self.layers:
                x = layer(x, torch.arange(x.shape[1])[None])
            return self.head(self.norm(x))[:, 4:]

    return plain(Model())


@SOUND()
def torch_lstm():
    """torch.nn.LSTM with two layers and dropout between them (off in evaluation)."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
            self.lstm = nn.LSTM(C, C, 2, batch_first=True, dropout=0.3)

        def forward(self, tokens):
            return self.head(self.lstm(self.embed(tokens))[0])

        def start(self, batch, capacity=None, **settings):
            return None

        @torch.no_grad()
        def step(self, tokens, state, *rest, **settings):
            x, state = self.lstm(self.embed(tokens), state)
            return self.head(x), state

    model = Model().eval()
    return ModelUnderTest(model, vocabulary=V, length=24, stepper=model)


@SOUND()
def retention():
    """RetNet: no softmax, a decay by distance, a group norm of each head at each token."""

    class Retention(Attention):
        def mix(self, q, k, v, mask):
            n = q.shape[2]
            decay = 1 - 2.0 ** (-2 - torch.arange(self.heads, dtype=q.dtype))
            distance = (torch.arange(n)[:, None] - torch.arange(n)).clamp(min=0)
            weight = (q @ k.transpose(-1, -2)) * decay[:, None, None] ** distance
            mixed = weight.masked_fill(~mask, 0) @ v
            return F.layer_norm(mixed, mixed.shape[-1:])

    return plain(with_attention(Retention)(V))


@SOUND()
def delta_rule():
    """DeltaNet: a fast weight matrix per row that each token corrects (a loop over time)."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.rate = nn.Linear(C, 3 * C), nn.Linear(C, 1)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            k, rate = F.normalize(k, dim=-1), self.rate(x).sigmoid()
            memory, found = x.new_zeros(len(x), C, C), []
            for t in range(x.shape[1]):
                wrong = v[:, t] - (memory @ k[:, t, :, None])[..., 0]
                memory = memory + rate[:, t, :, None] * wrong[..., None] * k[:, t, None, :]
                found.append((memory @ q[:, t, :, None])[..., 0])
            return torch.stack(found, 1)

    return plain(Around(Mixer))


@SOUND()
def bag_of_words():
    """The cumulative mean of the embeddings: the order of the earlier tokens has no effect, and none is claimed."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(V, C)
            self.out = nn.Sequential(nn.Linear(C, 64), nn.GELU(), nn.Linear(64, V))

        def forward(self, tokens):
            x = self.embed(tokens)
            count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
            return self.out(x.cumsum(1) / count[:, None])

    return plain(Model(), positional=False)
