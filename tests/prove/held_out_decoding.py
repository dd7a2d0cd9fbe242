"""Held-out faults of decoding, padding, order and fast paths."""

import torch
from small_decoder import Attention, Entries, Tiny, with_attention
from torch import nn
from torch.nn import functional as F

from regard.prove import ModelUnderTest

FAULTS = Entries()
V = 40


@FAULTS("step")
def cache_grows_short():
    """The KV cache doubles when it is full (8, 16, 32 ...) and copies `[: size - 1]`: the newest key before each growth
    is lost (zeros).
    Expected: decoding deviates from the ninth token on."""

    class Growing(Attention):
        def step(self, x, position, cache):
            q, k, v = self.project(x, position)
            if cache is None:
                cache = [k.new_zeros(*k.shape[:2], 8, k.shape[3]), v.new_zeros(*v.shape[:2], 8, v.shape[3]), 0]
            keys, values, used = cache
            need = used + k.shape[2]
            while keys.shape[2] < need:
                size = keys.shape[2]
                grown = [torch.zeros(*t.shape[:2], 2 * size, t.shape[3], dtype=t.dtype) for t in (keys, values)]
                for new, old in zip(grown, (keys, values), strict=False):
                    new[:, :, : size - 1] = old[:, :, : size - 1]
                keys, values = grown
            keys[:, :, used:need], values[:, :, used:need] = k, v
            mask = torch.ones(k.shape[2], need, dtype=torch.bool).tril(used)
            return self.merge(self.mix(q, keys[:, :, :need], values[:, :, :need], mask)), [keys, values, need]

    model = with_attention(Growing)(V).eval()
    return ModelUnderTest(model, vocabulary=V, length=40, stepper=model)


@FAULTS("step")
def top_left_mask():
    """`F.scaled_dot_product_attention(..., is_causal=tokens > 1)` with a cache: PyTorch aligns the triangle to the top
    left, so a second piece of several tokens sees only the oldest keys. Prompt + single tokens are right.
    Expected: a piece of several tokens after others gives other logits."""

    class TopLeft(Attention):
        def step(self, x, position, cache):
            q, k, v = self.project(x, position)
            if cache is not None:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)), (k, v)

    model = with_attention(TopLeft)(V).eval()
    return ModelUnderTest(model, vocabulary=V, length=24, stepper=model)


@FAULTS("step")
def state_survives():
    """`start` reuses the buffers of the last call with the same batch to save memory and does not empty them, so the
    second generation continues the first one's text.
    Expected: decoding is right once and wrong when it is started again."""

    class Sticky(Tiny):
        def __init__(self):
            super().__init__(V)
            self.kept = {}

        def start(self, batch, capacity=None, **settings):
            return self.kept.setdefault(batch, [0, [None] * len(self.layers)])

        def step(self, tokens, state, *rest, **settings):
            logits, after = super().step(tokens, tuple(state))
            state[0], state[1] = after
            return logits, state

    model = Sticky().eval()
    return ModelUnderTest(model, vocabulary=V, length=24, stepper=model)


@FAULTS("padding")
def mean_over_padding():
    """A bidirectional encoder that masks padded keys in its attention, then adds the mean of the row to every token
    (a global context vector) without the mask.
    Expected: logits depend on the amount and content of the padding."""

    class Both(Attention):
        real: torch.Tensor

        def mask(self, n, x):
            return self.real[:, None, None, :]

    model = with_attention(Both)(V).eval()

    def padded(tokens, lengths):
        real = torch.arange(tokens.shape[1]) < lengths[:, None]
        x, position = model.embed(tokens), torch.arange(tokens.shape[1])[None]
        for layer in model.layers:
            layer.mixer.real = real
            x = layer(x, position)
        x = x + x.mean(1, keepdim=True)
        return model.head(model.norm(x))

    def whole(tokens):
        return padded(tokens, torch.full((len(tokens),), tokens.shape[1]))

    return ModelUnderTest(whole, vocabulary=V, length=20, padded=padded, causal=False)


@FAULTS("padding")
def one_pad_visible():
    """An encoder whose key mask is `index <= length`: the first place of padding is attended to.
    Expected: the token after the end of a row changes its logits."""

    class Both(Attention):
        real: torch.Tensor

        def mask(self, n, x):
            return self.real[:, None, None, :]

    model = with_attention(Both)(V).eval()

    def padded(tokens, lengths):
        x, position = model.embed(tokens), torch.arange(tokens.shape[1])[None]
        for layer in model.layers:
            layer.mixer.real = torch.arange(tokens.shape[1]) <= lengths[:, None]
            x = layer(x, position)
        return model.head(model.norm(x))

    def whole(tokens):
        return padded(tokens, torch.full((len(tokens),), tokens.shape[1]))

    return ModelUnderTest(whole, vocabulary=V, length=20, padded=padded, causal=False)


@FAULTS("order")
def positions_are_zero():
    """A bidirectional encoder whose position ids come from `torch.zeros_like(tokens)` (an arange was lost in a
    refactoring): learned positions exist and are added, but all of row 0.
    Expected: permuting the tokens permutes the logits; positions have no effect."""

    class Both(Attention):
        def mask(self, n, x):
            return torch.ones(n, n, dtype=torch.bool)

        def project(self, x, position):
            return super().project(x, torch.zeros_like(position))

    class Lost(with_attention(Both)):
        def __init__(self):
            super().__init__(V)
            self.table = nn.Embedding(64, 32)

        def forward(self, tokens):
            position = torch.zeros_like(tokens)
            x = self.embed(tokens) + self.table(position)
            for layer in self.layers:
                x = layer(x, position)
            return self.head(self.norm(x))

    return ModelUnderTest(Lost().eval(), vocabulary=V, length=24, causal=False, positional=True)


@FAULTS("backends")
def fast_path_window():
    """A sliding window of 8 tokens, and a fast path for it that keeps 9 (distance <= 8 instead of < 8).
    Expected: the variant `banded` differs from the forward pass, from the ninth token on."""

    def windowed(size):
        class Window(Attention):
            def mask(self, n, x):
                return torch.ones(n, n, dtype=torch.bool).tril().triu(1 - size)

        return with_attention(Window)(V).eval()

    return ModelUnderTest(windowed(8), vocabulary=V, length=24, variants={"banded": windowed(9)})
