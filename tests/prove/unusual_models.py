"""Sound models of unusual kinds, as other libraries have them: no claim that can be judged may fail."""

from __future__ import annotations

import torch
from fault_kit import Healthy, bare
from faulty_cases import Free
from faulty_torch import VOCABULARY, WIDTH
from torch import Tensor, nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

Pair = tuple[Tensor, Tensor]


class FFTConvolution(nn.Module):
    """A causal convolution as long as the text, by FFT (Poli et al. 2023): later tokens come back as rounding."""

    def __init__(self, exact: bool = False, layers: int = 2):
        super().__init__()
        self.exact = exact  # in float32, whatever the number format of the rest
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.decay = nn.Parameter(torch.linspace(0.05, 2, WIDTH).repeat(layers, 1))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x, n = self.embed(tokens), tokens.shape[1]
        for decay, mix in zip(self.decay, self.mix, strict=True):
            dtype = torch.float32 if self.exact else x.dtype
            kernel = torch.exp(-decay.abs() * torch.arange(n, device=x.device)[:, None]).to(dtype)  # [N, C]
            spectrum = torch.fft.rfft(x.to(dtype), 2 * n, dim=1) * torch.fft.rfft(kernel, 2 * n, dim=0)
            x = x + torch.tanh(mix(torch.fft.irfft(spectrum, 2 * n, dim=1)[:, :n].to(x.dtype)))
        return self.head(x)


class Forbidding(Free):
    """Some tokens are never allowed: their logits are -inf."""

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        return super().through(x, seen).index_fill(-1, torch.tensor([0, 3]), -torch.inf)


class NoRepeats(Free):
    """The token of a position may not follow itself."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).scatter(-1, tokens[..., None], -torch.inf)


class MinGRU(nn.Module):
    """h_t = (1 - z_t) h_(t-1) + z_t g_t by a scan in log space (Feng et al. 2024, app. B), and step by step."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.gate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, g = self.gate(x), self.value(x)
        return -F.softplus(k), -F.softplus(-k), torch.where(g >= 0, (g.relu() + 0.5).log(), -F.softplus(-g))

    def forward(self, tokens: Tensor) -> Tensor:
        keep, write, value = self._inputs(self.embed(tokens))
        total = keep.cumsum(1)
        return self.head((total + torch.logcumsumexp(write + value - total, dim=1)).exp())

    def start(self, batch: int, capacity: int) -> Tensor:
        return torch.zeros(batch, WIDTH, dtype=self.head.weight.dtype)

    def step(self, tokens: Tensor, state: Tensor) -> Pair:
        found = []
        for x in self.embed(tokens).unbind(1):
            keep, write, value = self._inputs(x)
            state = keep.exp() * state + (write + value).exp()
            found.append(self.head(state))
        return torch.stack(found, 1), state


class SlidingState(nn.Module):
    """The mean of the last five embeddings; a step keeps those five."""

    size = 5

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.step(tokens, self.start(len(tokens), 0))[0]

    def start(self, batch: int, capacity: int) -> Tensor:
        return torch.zeros(batch, self.size - 1, WIDTH, dtype=self.head.weight.dtype)

    def step(self, tokens: Tensor, state: Tensor) -> Pair:
        x = torch.cat((state.to(self.embed.weight.dtype), self.embed(tokens)), 1)  # [B, 4 + N, C]
        weights = torch.linspace(0.2, 1, self.size, dtype=x.dtype)
        return self.head(torch.tanh(x.unfold(1, self.size, 1) @ weights)), x[:, 1 - self.size :]


class EncoderDecoder(nn.Module):
    """A decoder over a fixed source: the encoder sees all of the source, the decoder its past."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.places = nn.Embedding(512, WIDTH)
        self.model = nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, dropout=0.1, batch_first=True)
        self.register_buffer("source", torch.tensor([[1, 5, 2, 7, 7, 3]]))

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        source = self.embed(self.source).expand(len(tokens), -1, -1)
        mask = torch.full((n, n), -torch.inf, dtype=source.dtype).triu(1)
        x = self.embed(tokens) + self.places(torch.arange(n))
        return self.head(self.model(source, x, tgt_mask=mask, tgt_is_causal=True))


class RetrievalMemory(Free):
    """Each token reads the three entries of a memory that are nearest to it: a choice that rounding may decide."""

    def __init__(self):
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(64, WIDTH)) for _ in range(2))

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.layers[0](x, seen)
        best = (x @ self.keys.T.to(x.dtype)).topk(3, dim=-1).indices  # [B, N, 3]
        return self.head(self.layers[1](x + self.values[best].to(x.dtype).sum(2), seen))


class NearestPast(Free):
    """Each token copies from the two earlier tokens that are most similar to it."""

    def through(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.layers[0](x, seen)
        scores = (x @ x.transpose(1, 2)).masked_fill(~seen[0], -1e4)
        near = scores.topk(min(2, x.shape[1]), dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, near.indices, 1.0) * seen[0]
        return self.head(self.layers[1](x + weights @ x, seen))


def decoding(model: MinGRU | SlidingState) -> ModelUnderTest:
    return bare(model, stepper=model)


UNUSUAL: list[Healthy] = [
    Healthy("FFT convolution", lambda: bare(FFTConvolution())),
    Healthy("FFT convolution in float32", lambda: bare(FFTConvolution(exact=True))),
    Healthy("FFT convolution in float64", lambda: double(FFTConvolution())),
    Healthy("four FFT convolutions", lambda: bare(FFTConvolution(layers=4))),
    Healthy("FFT convolution as a function", lambda: closure(FFTConvolution())),
    Healthy("forbidden tokens", lambda: bare(Forbidding())),
    Healthy("no repeats", lambda: bare(NoRepeats())),
    Healthy("minGRU", lambda: decoding(MinGRU())),
    Healthy("sliding state", lambda: decoding(SlidingState())),
    Healthy("encoder-decoder", lambda: bare(EncoderDecoder())),
    Healthy("retrieval memory", lambda: bare(RetrievalMemory())),
    Healthy("nearest tokens of the past", lambda: bare(NearestPast())),
]


def double(model: nn.Module) -> ModelUnderTest:
    subject = bare(model)
    model.double()
    return subject


def closure(model: nn.Module) -> ModelUnderTest:
    bare(model)
    return ModelUnderTest(lambda tokens: model(tokens), vocabulary=VOCABULARY, length=24)
