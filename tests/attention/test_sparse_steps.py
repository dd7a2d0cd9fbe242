"""Every sparse attention trains, and decodes step by step with the same numbers from a memory that stays small."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from regard.attention import (
    AttentionConfig,
    CacheIndex,
    Causal,
    Mask,
    Packed,
    Padded,
    Prefix,
    Slots,
    Window,
    WindowConfig,
)
from regard.attention.masks.patterns import Sinks
from regard.attention.mechanisms.masked import (
    BigBirdConfig,
    DilatedConfig,
    LongformerConfig,
    SparseConfig,
    StridedConfig,
)
from regard.models import GPT, GPTConfig

KINDS: list[AttentionConfig] = [
    WindowConfig(size=5, sinks=3),
    DilatedConfig(size=4, step=3),
    StridedConfig(size=4, stride=5, far=3),
    SparseConfig(stride=6),
    SparseConfig("fixed", stride=7, width=2),
    LongformerConfig(size=5, tokens=2),
    BigBirdConfig(size=4, tokens=2, block=3, random=2),
]
LONG = 150  # many times the windows
BOUNDED = {"window": 3 + 4 + 16, "dilated": 9 + 16, "strided": 15 + 16, "longformer": 2 + 4 + 16}


def model(attention: AttentionConfig, layers: int = 2) -> GPT:
    torch.manual_seed(0)
    sizes = GPTConfig(vocabulary=11, context=LONG, layers=layers, heads=4, kv_heads=2, width=16, zero_init=False)
    return replace(sizes, attention=attention).build().double().eval()


@pytest.mark.parametrize("attention", KINDS, ids=str)
def test_steps_equal_the_full_pass(attention: AttentionConfig) -> None:
    gpt, text = model(attention), torch.randint(0, 11, (2, LONG))
    want = gpt(text).detach()
    for cut in ([1] * 40 + [110], [60, *[1] * 30, *[15] * 4], [2, 16, 100, 32]):
        state = gpt.start(2, LONG)
        bound = BOUNDED.get(attention.kind)
        assert bound is None or state.cache_indices[0].size == bound
        got = []
        for piece in text.split(cut, dim=1):
            logits, state = gpt.step(piece, state)
            got.append(logits)
        torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", KINDS, ids=str)
def test_padding_and_company_change_nothing(attention: AttentionConfig) -> None:
    gpt, text = model(attention), torch.randint(0, 11, (1, 140))
    alone = [gpt(text[:, :60]), gpt(text[:, 60:])]
    packed = gpt(text, Packed.of([[60, 80]]))
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-10)
    both = torch.cat([text[:, :80], torch.zeros_like(text[:, :80])])
    padded = gpt(both, Padded(torch.tensor([60, 80]), 80))
    torch.testing.assert_close(padded[:1, :60], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", KINDS, ids=str)
def test_it_learns(attention: AttentionConfig) -> None:
    gpt = model(attention).train()
    text = torch.randint(0, 11, (2, 140))
    optimizer = torch.optim.Adam(gpt.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(gpt(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


masks = st.one_of(
    st.builds(lambda size, first: Window(size) | Sinks(first), st.integers(1, 9), st.integers(0, 9)),
    st.builds(lambda size, first: Window(size) | Prefix(first), st.integers(1, 9), st.integers(0, 40)),
    st.builds(Window, st.integers(1, 9)),
    st.just(Sinks(3)),
)


@settings(max_examples=60)
@given(masks, st.integers(1, 80), st.lists(st.integers(1, 16), max_size=9), st.integers(1, 120), st.data())
def test_a_memory_holds_what_is_still_seen(
    pattern: Mask, first: int, later: list[int], capacity: int, data: st.DataObject
) -> None:
    """After ragged steps every token that a later query may see is there, once, and nothing else is taken for one."""
    mask = Causal() & pattern
    memory = CacheIndex.start(2, max(capacity, first + sum(later)), mask, torch.device("cpu"))
    position = torch.zeros(2, dtype=torch.long)
    for i, count in enumerate([first, *later]):
        lengths = torch.tensor(data.draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
        landing = memory.allocate(position, count, lengths, first=i == 0)
        assert landing.index.shape == (2, memory.size if i == 0 else count)
        position += lengths
    back = mask.retention().back
    assert back is not None
    slots = memory.slots(memory.size)
    assert isinstance(slots, Slots)
    for b in range(2):
        held = slots.order[b][slots.segment[b] >= 0].tolist()
        assert len(set(held)) == len(held)
        end = int(position[b])
        kept = {p for p in range(end) if p < mask.retention().first or end - p <= back}
        assert kept <= set(held) <= set(range(end))
