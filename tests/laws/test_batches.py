"""Law 4b: how texts share a batch changes nothing: padded = unpadded, packed = separate, gradients included."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from gpts import configs, tokens, wild
from hypothesis import assume, given
from strategies import agree, documents, examples, generator, seeds
from torch import Tensor

from regard.attention import AnySlots, Packed, Padded
from regard.models import GPT, GPTConfig


def gradients(model: GPT, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


def same_as_alone(model: GPT, texts: list[Tensor], together: Tensor, loss: Tensor, upstream: list[Tensor]) -> None:
    """``together`` holds the logits of all texts [tokens, V] in a row; ``loss`` their product with ``upstream``."""
    alone = [model(text[None])[0] for text in texts]
    agree(together.detach(), torch.cat(alone).detach(), "logits")
    lone = sum((logits * up).sum() for logits, up in zip(alone, upstream, strict=True))
    got, want = gradients(model, loss), gradients(model, lone)  # pyright: ignore[reportArgumentType]
    for name in want:
        agree(got[name], want[name], f"gradient of {name}")


def check(model: GPT, batch: Tensor, slots: AnySlots, spans: list[tuple[int, int, int]], seed: int) -> None:
    """``spans`` say where each text lies in the batch: row, start, stop."""
    texts = [batch[b, start:stop] for b, start, stop in spans]
    logits = model(batch, slots)
    assert logits.isfinite().all()
    together = torch.cat([logits[b, start:stop] for b, start, stop in spans])
    g = generator(seed)
    upstream = [torch.randn(len(text), logits.shape[-1], generator=g, dtype=logits.dtype) for text in texts]
    same_as_alone(model, texts, together, (together * torch.cat(upstream)).sum(), upstream)


@examples(2)
@given(configs(), seeds, st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(0, 4))
def test_padded_equals_unpadded(config: GPTConfig, seed: int, held: list[int], more: int) -> None:
    assume(sum(held))
    model, length = wild(config, seed), max(held) + more
    spans = [(b, 0, n) for b, n in enumerate(held) if n]
    check(model, tokens(len(held), length, seed), Padded(torch.tensor(held), length), spans, seed)


@examples(2)
@given(configs(), seeds, st.lists(documents(24), min_size=1, max_size=3), st.integers(0, 4), st.booleans())
def test_packed_equals_separate(
    config: GPTConfig, seed: int, rows: list[tuple[int, ...]], more: int, on_host: bool
) -> None:
    assume(any(rows))
    model, length = wild(config, seed), max(map(sum, rows)) + more
    slots = Packed.of(rows, length)
    spans = [(b, sum(row[:i]), sum(row[: i + 1])) for b, row in enumerate(rows) for i in range(len(row))]
    check(model, tokens(len(rows), length, seed), slots if on_host else slots._replace(documents=None), spans, seed)


@given(configs(), seeds, st.integers(1, 3), st.integers(1, 20))
def test_rows_do_not_depend_on_their_neighbours(config: GPTConfig, seed: int, rows: int, length: int) -> None:
    model, batch = wild(config, seed), tokens(rows, length, seed)
    check(model, batch, Padded(torch.full((rows,), length), length), [(b, 0, length) for b in range(rows)], seed)
    agree(model(batch), model(batch, Padded(torch.full((rows,), length), length)), "plain rows are full rows")
