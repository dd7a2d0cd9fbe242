"""Law 4a: decoding step by step gives what one pass over the whole sequence gives, however it is cut."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import torch
from gpts import CONTEXT, configs, tokens, wild
from hypothesis import given
from strategies import agree, examples, in_fair_shares, seeds

from regard.attention import SoftmaxConfig, WindowConfig
from regard.models import GPTConfig

RAN: Counter[str] = Counter()
mixed = st.builds(WindowConfig, size=st.integers(1, 3) | st.integers(1, 9)) | st.just(SoftmaxConfig())


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """How many tokens each step brings: one by one, a few, or more at once than a rolling memory takes in."""
    total = draw(st.sampled_from([40, 55, 70, 9]))
    sizes = draw(st.sampled_from([st.integers(17, 30), st.integers(1, 6), st.integers(1, 2)]))
    cut: list[int] = []
    while sum(cut) < total:
        cut.append(min(draw(sizes), total - sum(cut)))
    return cut


def counted(config: GPTConfig, memories: tuple, cut: list[int]) -> None:
    RAN["cases"] += 1
    rolling = any(memory.size < sum(cut) for memory in memories)
    RAN["several_steps"] += len(cut) > 1
    RAN["rolling"] += rolling
    RAN["rolling_in_pieces"] += rolling and max(cut[1:], default=0) > 16
    RAN["grouped"] += config.kv_heads not in (None, config.heads)


@in_fair_shares(RAN, several_steps=0.4, rolling=0.06, rolling_in_pieces=0.005, grouped=0.05)
@examples(2)
@given(configs(mixed), seeds, cuts(), st.booleans(), st.integers(1, 3))
def test_step_equals_the_full_pass(config: GPTConfig, seed: int, cut: list[int], fixed: bool, rows: int) -> None:
    model = wild(config, seed)
    text = tokens(rows, sum(cut), seed)
    want = model(text).detach()
    state = model.start(rows, sum(cut), fixed=fixed)
    counted(config, state.cache_indices, cut)
    for i, piece in enumerate(text.split(cut, dim=1)):
        start = sum(cut[:i])
        logits, state = model.step(piece, state)
        agree(logits, want[:, start : start + piece.shape[1]], f"step {i}")


@in_fair_shares(RAN, several_steps=0.4, rolling=0.06, rolling_in_pieces=0.005, grouped=0.05)
@given(configs(mixed), seeds, cuts(), st.booleans(), st.integers(1, 3), st.data())
def test_ragged_steps_equal_the_full_pass(
    config: GPTConfig, seed: int, cut: list[int], fixed: bool, rows: int, data: st.DataObject
) -> None:
    """Each row brings as many tokens to a step as it likes, none too; what lies after them leaves no trace."""
    model = wild(config, seed)
    state = model.start(rows, sum(cut), fixed=fixed)
    counted(config, state.cache_indices, cut)
    real, got = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for i, count in enumerate(cut):
        held = data.draw(st.lists(st.integers(0, count), min_size=rows, max_size=rows), label=f"lengths of step {i}")
        given_tokens = tokens(rows, count, seed + i)
        logits, state = model.step(given_tokens, state, torch.tensor(held))
        assert logits.isfinite().all()
        for b, n in enumerate(held):
            real[b].append(given_tokens[b, :n])
            got[b].append(logits[b, :n])
    for b in range(rows):
        text = torch.cat(real[b])[None]
        assert state.position[b] == text.shape[1]
        if text.shape[1]:
            agree(torch.cat(got[b]), model(text)[0].detach(), f"row {b}")


@given(configs(st.builds(WindowConfig, size=st.integers(1, 6))), seeds, st.integers(60, CONTEXT))
def test_a_rolling_memory_is_no_larger_than_its_window_needs(config: GPTConfig, seed: int, capacity: int) -> None:
    """A text many times the window goes through buffers that stay where they are and do not grow."""
    model = wild(config, seed)
    text = tokens(1, capacity, seed)
    state = model.start(1, capacity)
    assert isinstance(config.attention, WindowConfig)
    for mask, memory in zip(model.masks, state.cache_indices, strict=True):
        bounded = mask.reach().back is not None
        assert memory.size == (config.attention.size - 1 + 16 if bounded else capacity)
    places = [x.data_ptr() for layer in state.layers for x in layer]
    got = []
    for piece in text.split(7, dim=1):
        logits, state = model.step(piece, state)
        got.append(logits)
    assert places == [x.data_ptr() for layer in state.layers for x in layer]
    agree(torch.cat(got, dim=1), model(text).detach(), "rolling")
