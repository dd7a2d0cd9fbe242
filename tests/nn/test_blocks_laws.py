"""What every block and every projection keeps: blindness to the future, steps = whole, padding and packing."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from blocks_kit import VOCABULARY, agree, configs, gradients, more, seeds, tokens, wild
from hypothesis import assume, given
from torch import Tensor

from regard.attention import AnySlots, Packed, Padded
from regard.models import GPT, GPTConfig


@more
@given(configs(), seeds, st.integers(2, 20), st.data())
def test_the_future_has_no_gradient_and_changes_no_bit(
    config: GPTConfig, seed: int, length: int, data: st.DataObject
) -> None:
    model, text = wild(config, seed), tokens(2, length, seed)
    cut = data.draw(st.integers(1, length - 1), label="cut")
    other = text.clone()
    other[:, cut:] = (other[:, cut:] + 1) % VOCABULARY
    assert torch.equal(model(other)[:, :cut], model(text)[:, :cut])
    caught: list[Tensor] = []
    with model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out):
        logits = model(text)
    (gradient,) = torch.autograd.grad(logits[:, :cut].sum(), caught)
    assert not gradient[:, cut:].any()


@more
@given(configs(), seeds, st.lists(st.integers(1, 12), min_size=1, max_size=6), st.booleans())
def test_steps_equal_the_whole(config: GPTConfig, seed: int, cut: list[int], fixed: bool) -> None:
    model, text = wild(config, seed), tokens(2, sum(cut), seed)
    want, state = model(text).detach(), model.start(2, sum(cut), fixed=fixed)
    got = []
    for piece in text.split(cut, dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    agree(torch.cat(got, dim=1), want, "steps")


@more
@given(configs(), seeds, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4))
def test_ragged_steps_equal_the_whole(config: GPTConfig, seed: int, held: list[tuple[int, int]]) -> None:
    model, state = wild(config, seed), (wild(config, seed).start(2, 5 * len(held)))
    rows: list[list[Tensor]] = [[], []]
    got: list[list[Tensor]] = [[], []]
    for i, counts in enumerate(held):
        piece = tokens(2, 5, seed + i)
        logits, state = model.step(piece, state, torch.tensor(counts))
        for b, count in enumerate(counts):
            rows[b].append(piece[b, :count])
            got[b].append(logits[b, :count])
    for b in range(2):
        text = torch.cat(rows[b])[None]
        if text.shape[1]:
            agree(torch.cat(got[b]), model(text)[0].detach(), f"row {b}")


def alone(model: GPT, batch: Tensor, slots: AnySlots, spans: list[tuple[int, int, int]]) -> None:
    """Each text of the batch (row, start, stop) has the logits, and all the gradients, it has by itself."""
    logits = model(batch, slots)
    assert logits.isfinite().all()
    together = torch.cat([logits[b, start:stop] for b, start, stop in spans])
    apart = torch.cat([model(batch[b : b + 1, start:stop])[0] for b, start, stop in spans])
    agree(together.detach(), apart.detach(), "logits")
    weight = torch.linspace(-1, 1, together.numel(), dtype=together.dtype).view_as(together)
    got, want = gradients(model, (together * weight).sum()), gradients(model, (apart * weight).sum())
    for name in want:
        agree(got[name], want[name], f"gradient of {name}")


@more
@given(configs(), seeds, st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 4))
def test_padding_changes_nothing(config: GPTConfig, seed: int, held: list[int], blank: int) -> None:
    assume(sum(held))
    length = max(held) + blank
    spans = [(b, 0, n) for b, n in enumerate(held) if n]
    alone(wild(config, seed), tokens(len(held), length, seed), Padded(torch.tensor(held), length), spans)


@more
@given(configs(), seeds, st.lists(st.lists(st.integers(1, 7), max_size=3), min_size=1, max_size=2), st.integers(0, 4))
def test_packed_documents_do_not_see_each_other(
    config: GPTConfig, seed: int, rows: list[list[int]], blank: int
) -> None:
    assume(any(rows))
    length = max(map(sum, rows)) + blank
    spans = [(b, sum(row[:i]), sum(row[: i + 1])) for b, row in enumerate(rows) for i in range(len(row))]
    alone(wild(config, seed), tokens(len(rows), length, seed), Packed.of(rows, length), spans)
