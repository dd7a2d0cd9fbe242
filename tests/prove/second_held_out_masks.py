"""Second held-out list: logits that depend on later tokens or are not finite."""

import torch
from second_held_out_kit import (
    Attention,
    Block,
    Decoder,
    Effects,
    causal,
    drawn,
    leak,
    seeded,
)
from small_decoder import Entries
from torch import Tensor, nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

FAULTS, EFFECTS = Entries(), Effects()


class ConvNet(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32, layers: int = 3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(layers))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + F.gelu(conv(F.pad(norm(x), (2 * 2**i, 0))))
        return self.head(x.transpose(1, 2))


@FAULTS("future padding")
def group_norm_conv():
    """A causal convolution net whose GroupNorm takes its statistics over all time steps."""
    return ModelUnderTest(seeded(ConvNet, 31), vocabulary=31, length=24)


@EFFECTS(group_norm_conv)
def _():
    return leak(seeded(ConvNet, 31), drawn(2, 24, 31), 20, 31)


class HalfFast(Attention):
    def mix(self, q, k, v, mask, bias):
        if q.dtype in (torch.float16, torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v)  # is_causal=False is the default
        return super().mix(q, k, v, mask, bias)


def half_fast():
    return Decoder(29, block=lambda w, h: Block(w, h, HalfFast(w, h)))


@FAULTS("future padding")
def half_fast_path():
    """In 16 bits a fused kernel is called without is_causal; float32 takes the masked path."""
    return ModelUnderTest(seeded(half_fast), vocabulary=29, length=20)


@EFFECTS(half_fast_path)
def _():
    model = seeded(half_fast)
    assert leak(model, drawn(2, 20, 29), 15, 29) == 0
    return leak(model.bfloat16(), drawn(2, 20, 29), 15, 29)


class Chunked(nn.Module):
    def __init__(self, width: int, chunk: int = 32):
        super().__init__()
        self.chunk = chunk
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask=None, bias=None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        n, c = x.shape[1], self.chunk
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)  # the last column is the denominator
        if n <= c:
            y = (q @ k.transpose(1, 2)).tril() @ v
        else:
            q, k, v = (F.pad(t, (0, 0, 0, -n % c)).unflatten(1, (-1, c)) for t in (q, k, v))  # [B, M, c, D]
            states = (k.transpose(2, 3) @ v).cumsum(1)  # should be that of the chunks before
            y = ((q @ k.transpose(2, 3)).tril() @ v + q @ states).flatten(1, 2)[:, :n]
        return self.o(y[..., :-1] / y[..., -1:].clamp(min=1e-6))


def chunked():
    return Decoder(29, block=lambda w, h: Block(w, h, Chunked(w)))


@FAULTS("future padding")
def chunked_scan():
    """Linear attention in chunks of 32: rows longer than one chunk add the state after the own chunk, not before it."""
    return ModelUnderTest(seeded(chunked), vocabulary=29, length=24)


@EFFECTS(chunked_scan)
def _():
    model = seeded(chunked)
    assert leak(model, drawn(2, 24, 29), 20, 29) == 0
    return leak(model, drawn(2, 40, 29), 20, 29)


class Separated(Decoder):
    def mask(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        place = torch.arange(n, device=tokens.device)
        last = torch.where(tokens == 2, place, -1).amax(1)  # [B]
        recent = place >= last[:, None]  # keys since the last separator
        own = torch.eye(n, dtype=torch.bool, device=tokens.device)  # a query sees itself at least
        return ((causal(n, tokens.device) & recent[:, None]) | own)[:, None]


@FAULTS("future padding")
def separator_reset():
    """Attention forgets what precedes a separator, but takes the last separator of the row, also for earlier
    queries."""
    return ModelUnderTest(seeded(Separated, 61), vocabulary=61, length=24)


@EFFECTS(separator_reset)
def _():
    tokens = drawn(2, 24, 61)
    tokens[tokens == 2] = 5
    tokens[:, 20] = 1  # becomes 2
    return leak(seeded(Separated, 61), tokens, 20, 61)


class Retention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask=None, bias=None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        decay = torch.pow(torch.tensor(0.25, dtype=x.dtype, device=x.device), torch.arange(x.shape[1], device=x.device))
        q, k = q * decay[:, None], k / decay[:, None]
        return self.o((q @ k.transpose(1, 2)).tril() @ v)


def retention():
    return Decoder(29, block=lambda w, h: Block(w, h, Retention(w)))


@FAULTS("finite")
def retention_powers():
    """The decay of retention as gamma^t and gamma^-t apart: 0 times inf is NaN after 64 tokens."""
    return ModelUnderTest(seeded(retention), vocabulary=29, length=40)


@EFFECTS(retention_powers)
@torch.no_grad()
def _():
    model = seeded(retention)
    assert model(drawn(1, 40, 29)).isfinite().all()
    return float(model(drawn(1, 80, 29)).isnan().sum())
