"""Held-out sound models of unusual kinds: unusual heads and norms, and models of this library."""

import math

import torch
from held_out_sound import Around, plain
from small_decoder import Attention, Entries, Tiny, randomize, with_attention
from torch import nn
from torch.nn import functional as F

from regard.models import GPTConfig, RecurrentConfig, Seq2SeqConfig
from regard.prove import ModelUnderTest

SOUND = Entries()
V, C = 40, 32


@SOUND()
def stick_breaking():
    """Stick-breaking attention (Tan et al. 2024): each key from the newest on takes a share of what is left."""

    class Stick(Attention):
        def mix(self, q, k, v, mask):
            z = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            strict = mask.tril(-1)
            left = F.softplus(z).masked_fill(~strict, 0)  # -log(1 - share)
            after = left.flip(-1).cumsum(-1).flip(-1) - left
            return (F.logsigmoid(z) - after).exp().masked_fill(~strict, 0) @ v

    return plain(with_attention(Stick)(V))


@SOUND()
def log_probabilities():
    """A mixture of three softmaxes that returns log-probabilities instead of logits."""

    class Model(Tiny):
        def __init__(self):
            super().__init__(V)
            self.prior, self.three = nn.Linear(V, 3), nn.Linear(V, 3 * V)

        def forward(self, tokens):
            x = super().forward(tokens)
            each = self.three(x).unflatten(-1, (3, V)).log_softmax(-1)
            return (self.prior(x).log_softmax(-1)[..., None] + each).logsumexp(-2)

    return plain(Model())


@SOUND()
def copy_pointer():
    """Logits from counting alone: which tokens followed earlier occurrences of the current one (no gradient at all)."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(V))

        def forward(self, tokens):
            n = tokens.shape[1]
            same = tokens[:, :, None] == tokens[:, None, :]  # query, key
            earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
            follows = F.one_hot(F.pad(tokens, (0, 1))[:, 1:], V).to(self.bias.dtype)  # the token after each key
            return self.bias + (same & earlier).to(self.bias.dtype) @ follows

    return plain(Model())


@SOUND()
def running_maximum():
    """A causal maximum over all earlier tokens (cummax), channel by channel."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(C, C), nn.Linear(C, C)

        def forward(self, x):
            return self.out(self.into(x).cummax(1).values)

    return plain(Around(Mixer, 2))


@SOUND()
def large_logits():
    """A badly scaled but correct model: logits in the thousands."""
    model = Tiny(V)
    with torch.no_grad():
        model.head.weight.mul_(2000)
    return plain(model)


@SOUND()
def frozen_batch_norm():
    """Batch norm in evaluation, with running statistics from training: a fixed affine map."""

    class Model(Tiny):
        def __init__(self):
            super().__init__(V)
            self.batch = nn.BatchNorm1d(C)
            self.batch.register_buffer("running_mean", torch.randn(C))
            self.batch.register_buffer("running_var", 0.5 + 1.5 * torch.rand(C))

        def forward(self, tokens):
            x, position = self.embed(tokens), torch.arange(tokens.shape[1])[None]
            for layer in self.layers:
                x = self.batch(layer(x, position).transpose(1, 2)).transpose(1, 2)
            return self.head(x)

    return plain(Model())


@SOUND()
def padded_encoder():
    """A bidirectional encoder with masked padding."""

    class Both(Attention):
        real: torch.Tensor

        def mask(self, n, x):
            return self.real[:, None, None, :]

    model = with_attention(Both)(V).eval()

    def padded(tokens, lengths):
        x, position = model.embed(tokens), torch.arange(tokens.shape[1])[None]
        for layer in model.layers:
            layer.mixer.real = torch.arange(tokens.shape[1]) < lengths[:, None]
            x = layer(x, position)
        return model.head(model.norm(x))

    def whole(tokens):
        return padded(tokens, torch.full((len(tokens),), tokens.shape[1]))

    return ModelUnderTest(whole, vocabulary=V, length=20, padded=padded, causal=False)


@SOUND()
def selective_scan():
    """Mamba's selective state space: step sizes depend on the token; a loop over time, with a state for decoding."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
            self.delta, self.bc, self.log = nn.Linear(C, C), nn.Linear(C, 16), nn.Parameter(torch.rand(C, 8))

        def scan(self, x, state):
            delta, (b, c), found = F.softplus(self.delta(x)), self.bc(x).chunk(2, -1), []
            for t in range(x.shape[1]):
                state = (-self.log.exp() * delta[:, t, :, None]).exp() * state
                state = state + (delta[:, t] * x[:, t])[..., None] * b[:, t, None, :]
                found.append((state * c[:, t, None, :]).sum(-1))
            return torch.stack(found, 1), state

        def empty(self, rows):
            return self.log.new_zeros(rows, C, 8)

        def forward(self, tokens):
            x = self.embed(tokens)
            return self.head(x + self.scan(x, self.empty(len(x)))[0])

        def start(self, batch, capacity=None, **settings):
            return self.empty(batch)

        @torch.no_grad()
        def step(self, tokens, state, *rest, **settings):
            x = self.embed(tokens)
            y, state = self.scan(x, state)
            return self.head(x + y), state

    model = Model().eval()
    return ModelUnderTest(model, vocabulary=V, length=24, stepper=model)


@SOUND()
def library_gpt():
    """A GPT of the library: post-norm, ALiBi, one key head, capped logits, trigrams, LayerNorm, biases."""
    from regard.nn.blocks.block import PostNormConfig
    from regard.nn.norm import LayerNormConfig
    from regard.nn.positions.position import AlibiConfig

    config = GPTConfig(
        vocabulary=V,
        context=24,
        layers=2,
        heads=4,
        kv_heads=1,
        width=32,
        cap=8.0,
        ngrams=3,
        buckets=64,
        bias=True,
        qk_norm=False,
        block=PostNormConfig(),
        norm=LayerNormConfig(),
        position=AlibiConfig(),
    )
    return ModelUnderTest(randomize(config.build()))


@SOUND()
def library_gru():
    """A GRU of the library, with dropout 0.5, without residual sums."""
    config = RecurrentConfig(cell="gru", vocabulary=V, context=24, layers=2, width=24, dropout=0.5, residual=False)
    return ModelUnderTest(randomize(config.build()))


@SOUND()
def library_seq2seq():
    """Bahdanau's encoder-decoder of the library with an LSTM and two vocabularies."""
    config = Seq2SeqConfig(vocabulary=V, source_vocabulary=30, context=16, cell="lstm", width=16, tied=False)
    return ModelUnderTest(randomize(config.build()))
