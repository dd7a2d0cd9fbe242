"""What tests of mechanisms share: random tensors, any slots, and attention written out over a dense mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import hypothesis.strategies as st
import torch
from torch import Tensor

from regard import attention as a
from regard.models import GPT, GPTConfig

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for shape in shapes]


def qkv(seed: int, batch: int, heads: tuple[int, int], length: int, width: int = 4) -> list[Tensor]:
    """Queries of heads[0] heads, keys and (wider) values of heads[1]."""
    shapes = ((heads[0], width), (heads[1], width), (heads[1], width + 1))
    return drawn(seed, *((batch, h, length, d) for h, d in shapes))


def same(got: Tensor, want: Tensor, inputs: Sequence[Tensor]) -> None:
    """Equal, and so are the gradients of a random sum."""
    assert got.isfinite().all()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    ours, theirs = (torch.autograd.grad(x, inputs, upstream, materialize_grads=True) for x in (got, want))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@st.composite
def rows(draw: st.DrawFn, longest: int = 24) -> tuple[a.AnySlots, int]:
    """Slots of any kind for a token's own row, and how many rows the batch has."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, longest))
    kind = draw(st.sampled_from(["range", "padded", "packed", "packed, unknown", "any"]))
    if kind == "range":
        return a.Range(length, draw(st.integers(0, 3))), batch
    if kind == "padded":
        held = draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch))
        return a.Padded(torch.tensor(held), length), batch
    if kind == "any":
        g = torch.Generator().manual_seed(draw(seeds))
        order = torch.stack([torch.randperm(length + 4, generator=g)[:length] for _ in range(batch)])
        segment = torch.randint(-1, 2, order.shape, generator=g)
        return a.Slots(order, segment, order), batch
    cuts = draw(st.lists(st.integers(1, length), min_size=batch, max_size=batch))
    documents = [[n for n in (cut, length - cut - 1) if n > 0] for cut in cuts]  # mostly an empty place at the end
    slots = a.Packed.of(documents, length)
    return (slots if kind == "packed" else slots._replace(documents=None)), batch


masks = st.sampled_from([a.Causal(), a.Full(), a.Window(5, 2), a.Causal() & a.Window(9), ~a.Strided(3)])
heads = st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)])


def dense(mask: a.Mask, queries: a.AnySlots, keys: a.AnySlots, batch: int) -> Tensor:
    """Who may see whom, [B, Q, K], by the slots' own words."""
    pairs = a.Pairs(
        torch.arange(batch)[:, None, None],
        torch.zeros(1, 1, 1, dtype=torch.long),
        *(
            slots.at(torch.arange(batch)[:, None, None] % slots.rows, torch.arange(slots.length).view(shape))
            for slots, shape in ((queries, (1, -1, 1)), (keys, (1, 1, -1)))
        ),
    )
    same_document = (pairs.q.segment == pairs.k.segment) & (pairs.q.segment >= 0)
    return mask.allows(pairs) & same_document


def softmax_over(scores: Tensor, seen: Tensor) -> Tensor:
    """exp and divide; rows that see nothing are zero."""
    top = scores.detach().masked_fill(~seen, -math.inf).amax(-1, keepdim=True).clamp(min=-1e9)
    shares = torch.where(seen, (scores - top).clamp(max=50), -math.inf).exp()
    return shares / shares.sum(-1, keepdim=True).clamp(min=1e-300)


def each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values of G heads, once for each query head."""
    return torch.stack([x[:, h * x.shape[1] // heads] for h in range(heads)], dim=1)


def raw_scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", q, each_head(k, q.shape[1])) / math.sqrt(q.shape[3])


def learns_and_decodes(attention: a.AttentionConfig, kv_heads: int = 2) -> GPT:
    """A tiny model with this attention learns two texts by heart, and reads them step by step as at once."""
    torch.manual_seed(0)
    model = GPTConfig(
        vocabulary=7,
        context=24,
        layers=2,
        heads=4,
        kv_heads=kv_heads,
        width=16,
        zero_init=False,
        attention=attention,
    ).build()
    tokens = torch.randint(0, 7, (2, 24))
    optimizer, losses = torch.optim.AdamW(model.parameters(), 0.02), []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.2
    model = model.double().eval()
    state, parts = model.start(2, 24), []
    for piece in tokens.split([9, 1, 1, 5, 1, 7], dim=1):
        logits, state = model.step(piece, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), rtol=0, atol=1e-10)
    return model
