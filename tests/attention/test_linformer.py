"""Linformer: equal to its formula, exact with identity projections, and honest about what it cannot do."""

from __future__ import annotations

import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from dense_kit import drawn, qkv, same, seeds
from hypothesis import given
from torch import Tensor

from regard.attention import Alibi, Causal, Full, LayerSpec, Packed, Padded, Range, Slots, Softmax, Window
from regard.attention.mechanisms.linformer import Linformer, LinformerConfig
from regard.errors import UserError
from warm_process import regard

SHARES = ["nothing", "heads", "all"]


def naive(q: Tensor, k: Tensor, v: Tensor, one: Tensor, two: Tensor, lengths: list[int], start: int = 0) -> Tensor:
    """Row by row and head by head: softmax(q (E k)ᵀ/√D) F v over the tokens that are there; E [G, k, context]."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype) + 0 * (q.sum() + k.sum() + v.sum())
    for b, n in enumerate(lengths):
        few = min(one.shape[1], n)
        for h in range(q.shape[1] if n else 0):
            g = h * k.shape[1] // q.shape[1]
            keys, values = (
                torch.stack(
                    [torch.stack([p[g, s, start + j] * x[b, g, j] for j in range(n)]).sum(0) for s in range(few)]
                )
                for p, x in ((one, k), (two, v))
            )
            weights = torch.softmax(keys @ q[b, h, :n].T / math.sqrt(q.shape[3]), 0)
            out = out + torch.zeros_like(out).index_put(
                (torch.tensor(b), torch.tensor(h), torch.arange(n)), weights.T @ values
            )
    return out


@given(
    st.sampled_from(SHARES),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)]),
    seeds,
)
def test_it_is_attention_over_projected_keys(share, lengths: list[int], few: int, heads: tuple[int, int], seed: int):
    longest, context = max(*lengths, 1), 9
    mechanism = Linformer(heads[1], context, few, share).double()
    q, k, v = inputs = qkv(seed, len(lengths), heads, longest)
    plan = mechanism.plan(Full(), Padded(torch.tensor(lengths), longest), like=q)
    one, two = (mechanism.projections[i].expand(heads[1], -1, -1) for i in (0, -1))
    inputs = [*inputs, mechanism.projections]
    same(mechanism(q, k, v, plan).values, naive(q, k, v, one, two, lengths), inputs)


@given(st.sampled_from(SHARES), st.integers(1, 9), st.integers(0, 3), seeds)
def test_plain_rows_use_the_columns_of_their_places(share, length: int, start: int, seed: int) -> None:
    mechanism = Linformer(2, 12, 4, share).double()
    q, k, v = inputs = drawn(seed, (2, 2, length, 4), (2, 2, length, 4), (2, 2, length, 4))
    plan = mechanism.plan(Full(), Range(length, start), like=q)
    one, two = (mechanism.projections[i].expand(2, -1, -1) for i in (0, -1))
    same(mechanism(q, k, v, plan).values, naive(q, k, v, one, two, [length] * 2, start), inputs)


@given(st.sampled_from(SHARES), st.lists(st.integers(0, 8), min_size=2, max_size=3), seeds)
def test_identity_projections_are_exact_attention_at_every_length(share, lengths: list[int], seed: int) -> None:
    mechanism = Linformer(2, 8, 8, share).double()
    with torch.no_grad():
        mechanism.projections.copy_(torch.eye(8).expand_as(mechanism.projections))
    q, k, v = inputs = drawn(seed, *((len(lengths), heads, 8, 4) for heads in (4, 2, 2)))
    slots, exact = Padded(torch.tensor(lengths), 8), Softmax(backend="reference")
    got = mechanism(q, k, v, mechanism.plan(Full(), slots, like=q)).values
    same(got, exact(q, k, v, exact.plan(Full(), slots, like=q)).values, inputs)


def test_padding_changes_nothing() -> None:
    mechanism = Linformer(1, 16, 4).double()
    q, k, v = drawn(0, (1, 1, 10, 4), (1, 1, 10, 4), (1, 1, 10, 4))
    short = [x[:, :, :6] for x in (q, k, v)]
    want = mechanism(*short, mechanism.plan(Full(), Range(6), like=q)).values
    got = mechanism(q, k, v, mechanism.plan(Full(), Padded(torch.tensor([6]), 10), like=q)).values
    torch.testing.assert_close(got[:, :, :6], want)
    assert not got[:, :, 6:].any()


def test_keys_may_be_another_text() -> None:
    mechanism = Linformer(1, 16, 4).double()
    q, k, v = drawn(0, (2, 1, 3, 4), (2, 1, 10, 4), (2, 1, 10, 4))
    plan = mechanism.plan(Full(), Range(3), Padded(torch.tensor([10, 2]), 10), like=q)
    together = mechanism(q, k, v, plan).values
    alone = mechanism.plan(Full(), Range(3), Range(2), like=q)
    torch.testing.assert_close(mechanism(q[1:], k[1:, :, :2], v[1:, :, :2], alone).values, together[1:])


def test_scores_start_with_the_spread_of_exact_attention() -> None:
    mechanism = Linformer(1, 4096, 16)
    mechanism.projections.data.zero_()
    mechanism.reset()
    torch.manual_seed(0)
    assert (mechanism.projections[0] @ torch.randn(1, 4096, 64)).std().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("mask", "slots", "said"),
    [
        (Causal(), Range(4), "mixes the future into every summary"),
        (Causal() & Window(2), Range(4), "mixes the future into every summary"),
        (Window(2, 1), Range(4), "cannot hide single tokens"),
        (Full(), Packed.of([[2, 2]]), "several documents in one row"),
        (Full(), Slots(torch.arange(4)[None], torch.zeros(1, 4).long(), torch.arange(4)[None]), "slots in any order"),
        (Full(), Range(9), "projections end at position 8, and the text at 9"),
        (Full(), Range(4, start=5), "projections end at position 8, and the text at 9"),
    ],
)
def test_what_it_cannot_do_it_says(mask, slots, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Linformer(1, 8, 4).plan(mask, slots, like=torch.zeros(1))
    assert not Linformer.steppable


def test_a_bias_is_refused_and_settings_are_checked() -> None:
    with pytest.raises(UserError, match="a summary has no position"):
        LinformerConfig().mechanism(LayerSpec(2, 2, 8, 16, Alibi(2)))
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        LinformerConfig(k=0).check()
    made = LinformerConfig(k=64, share="nothing").mechanism(LayerSpec(4, 2, 8, 16))
    assert [tuple(p.shape) for p in made.parameters()] == [(2, 2, 16, 16)], "no more summaries than tokens"


def test_a_compiler_can_trace_it() -> None:
    mechanism = Linformer(2, 8, 4)
    q, k, v = (torch.randn(2, 2, 6, 4, requires_grad=True) for _ in range(3))

    def run(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return mechanism(q, k, v, mechanism.plan(Full(), Padded(lengths, 6), like=q)).values

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    lengths = torch.tensor([6, 2])
    torch.testing.assert_close(compiled(q, k, v, lengths), run(q, k, v, lengths))


def test_a_causal_model_ends_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60)
    options = [
        "train",
        "shakespeare",
        "--data.path",
        "text.txt",
        "--model.attention",
        "linformer",
        "--model.context",
        "32",
    ]
    done = regard(tmp_path, *options)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "linformer cannot be causal" in done.stderr
