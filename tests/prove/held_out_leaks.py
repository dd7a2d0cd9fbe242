"""Held-out faults: logits that depend on later tokens or on other rows."""

import torch
from small_decoder import Attention, Entries, Tiny, bare, with_attention
from torch import nn
from torch.nn import functional as F

FAULTS = Entries()
V = 40


@FAULTS("future")
def bfloat16_positions():
    """The causal mask compares positions in the dtype of the activations: bfloat16 has no 257, so beyond 256 tokens a
    query sees the next token (and 512: the next three). The model is served in bfloat16 with a context of 384.
    Expected: logits at position 256 depend on token 257; in float32 nothing is wrong."""

    class Rounded(Attention):
        def mask(self, n, x):
            index = torch.arange(n).to(x.dtype)
            return index[:, None] >= index[None, :]

    model = with_attention(Rounded)(V, width=16, heads=2, layers=1).bfloat16().eval()
    return bare(model, V, 384)


@FAULTS("future")
def mask_buffer_ends():
    """The mask is a buffer for the trained context of 32; for longer inputs the missing part is padded with ones.
    Expected: from 33 tokens on, logits depend on later tokens."""

    class Ends(Attention):
        def mask(self, n, x):
            kept = torch.ones(32, 32, dtype=torch.bool).tril()[:n, :n]
            return F.pad(kept, (0, n - len(kept), 0, n - len(kept)), value=True)

    return bare(with_attention(Ends)(V).eval(), V, 48)


@FAULTS("future")
def ragged_tail_chunk():
    """Attention in chunks of 8: inside the last, incomplete chunk no mask is applied ("it is the newest text anyway").
    Lengths that are multiples of 8, as the tested 32, are right.
    Expected: with 27 tokens the logits of the last three depend on each other both ways."""

    class Chunked(Attention):
        def mask(self, n, x):
            mask = torch.ones(n, n, dtype=torch.bool).tril()
            tail = n - n % 8
            mask[tail:, tail:] = True
            return mask

    return bare(with_attention(Chunked)(V).eval(), V, 32)


@FAULTS("future")
def single_row_fast_path():
    """A fast path for one row (an interactive prompt) calls the kernel without is_causal; batches are right.
    Expected: a row alone has other logits than in a batch, and sees later tokens."""

    class Fast(Attention):
        def forward(self, x, position):
            q, k, v = self.project(x, position)
            return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=len(x) > 1))

    return bare(with_attention(Fast)(V).eval(), V, 24)


@FAULTS("future")
def group_norm_over_time():
    """A convolutional model with causal padding, but GroupNorm on [B, C, N]: the statistics are over time as well.
    Expected: every logit depends on all tokens, through the norm."""

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.conv = (
                nn.Embedding(V, 32),
                nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**i) for i in range(3)),
            )
            self.norm, self.head = nn.ModuleList(nn.GroupNorm(4, 32) for _ in range(3)), nn.Linear(32, V)

        def forward(self, tokens):
            x = self.embed(tokens).transpose(1, 2)
            for i, (conv, norm) in enumerate(zip(self.conv, self.norm, strict=False)):
                x = x + F.gelu(norm(conv(F.pad(x, (2 * 2**i, 0)))))
            return self.head(x.transpose(1, 2))

    return bare(Conv().eval(), V, 24)


@FAULTS("future")
def causal_only_in_eval():
    """`is_causal=not self.training`: the flag is inverted in a refactoring, so training sees the future and evaluation
    does not (loss near zero in training, useless text). The model is given in training mode.
    Expected: in training mode logits depend on later tokens."""

    class Inverted(Attention):
        def forward(self, x, position):
            q, k, v = self.project(x, position)
            return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=not self.training))

    return bare(with_attention(Inverted)(V).train(), V, 24)


@FAULTS("future")
def positions_from_the_end():
    """Left padding is guessed from token id 0: positions are counted back from the number of non-zero tokens in the
    whole row, so a later token 0 shifts the positions of all earlier tokens; nothing else leaks.
    Expected: replacing a later token by id 0 changes earlier logits."""

    class FromEnd(Tiny):
        def __init__(self):
            super().__init__(V)
            self.table = nn.Embedding(256, 32)

        def forward(self, tokens):
            n, real = tokens.shape[1], (tokens != 0).sum(1, keepdim=True)
            position = (torch.arange(n)[None] - (n - real)).clamp(min=0)
            x = self.embed(tokens) + self.table(position)
            for layer in self.layers:
                x = layer(x, torch.arange(n)[None])
            return self.head(self.norm(x))

    return bare(FromEnd().eval(), V, 24)


@FAULTS("future")
def detached_global_maximum():
    """An attention-free layer sum(exp(k) v) / sum(exp(k)), stabilized by the maximum of k over the whole row, detached,
    with an epsilon in the denominator: no gradient reaches a later token, but a large later k makes the earlier
    weights underflow into the epsilon.
    Expected: earlier logits change when a later token does, though the gradient is zero."""

    class AFT(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.kv, self.head = nn.Embedding(V, 32), nn.Linear(32, 64), nn.Linear(32, V)
            with torch.no_grad():
                self.kv.weight.mul_(8)

        def forward(self, tokens):
            x = self.embed(tokens)
            k, v = self.kv(x).chunk(2, -1)
            weight = (k - k.detach().amax(1, keepdim=True)).exp()
            return self.head(x + (weight * v).cumsum(1) / (weight.cumsum(1) + 1e-3))

    return bare(AFT().eval(), V, 24)


class Experts(nn.Module):
    """A model of attention and two experts; `choose` maps scores [B, N, E] to gates [B, N, E]."""

    def __init__(self, choose):
        super().__init__()
        self.base, self.route = Tiny(V), nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(4))
        self.choose = choose

    def forward(self, tokens):
        x = self.base.embed(tokens)
        for layer in self.base.layers:
            x = layer(x, torch.arange(tokens.shape[1])[None])
        gate = self.choose(self.route(x).softmax(-1))
        x = x + sum(gate[..., e : e + 1] * expert(x) for e, expert in enumerate(self.experts))
        return self.base.head(self.base.norm(x))


@FAULTS("future")
def expert_choice():
    """Expert-choice routing in a language model: each expert takes its best half of all tokens of the row, so whether
    a token is processed depends on later tokens.
    Expected: later tokens change earlier logits, by the router."""

    def choose(score):
        count = max(1, score.shape[1] // 2)
        best = score.topk(count, dim=1).indices
        return score * torch.zeros_like(score).scatter(1, best, 1.0)

    return bare(Experts(choose).eval(), V, 24)


@FAULTS("batching")
def capacity_over_the_batch():
    """Token-choice routing with a capacity that is filled in the order of the flattened batch: the rows that come later
    lose their experts to the first rows, and the capacity grows with the length of the row.
    Expected: a row's logits depend on the other rows of the batch and on the row's length."""

    def choose(score):
        flat = score.flatten(0, 1)
        taken = F.one_hot(flat.argmax(-1), 4)
        capacity = max(1, int(1.0 * len(flat) / 4))
        fits = taken * (taken.cumsum(0) <= capacity)
        return (flat * fits).view_as(score)

    return bare(Experts(choose).eval(), V, 24)
