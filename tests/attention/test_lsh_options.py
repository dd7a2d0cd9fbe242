"""Hashed attention: its settings, its default form, and shared queries and keys (Reformer's own form)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.attention import (
    Causal,
    LayerSpec,
    Range,
    Softmax,
)
from regard.attention.mechanisms import lsh_tiles
from regard.attention.mechanisms.lsh import LSH, Form, LSHConfig
from regard.attention.mechanisms.lsh_tiles import tileable
from regard.errors import UserError
from regard.nn.attention import AttentionContext, AttentionSizes, SharedQKConfig
from regard.nn.positions.position import NoRotation


def test_settings_are_checked() -> None:
    for wrong, said in (
        (LSHConfig(buckets=3), "an even number, 2 or more, not 3"),
        (LSHConfig(rounds=0), "rounds must be at least 1"),
        (LSHConfig(chunk=0), "chunk must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong.check()
    with pytest.raises(UserError, match="cannot run on the backend 'sdpa'; set backend = auto"):
        LSHConfig().mechanism(LayerSpec(2, 2, 8, 16, backend="sdpa"))


def test_the_default_form_is_the_faster_one() -> None:
    def form(context: int, config: LSHConfig) -> str:
        built = config.mechanism(LayerSpec(2, 2, 8, context))
        assert isinstance(built, LSH)
        return built.form

    assert [form(n, LSHConfig()) for n in (64, 1023, 1024, 8192)] == ["exact", "exact", "sorted", "sorted"]
    assert form(64, LSHConfig(rounds=1, chunk=16)) == "sorted"
    assert form(8192, LSHConfig(form="exact")) == "exact"
    assert form(8, LSHConfig(form="sorted")) == "sorted"


@pytest.mark.parametrize("form", ["exact", "sorted"])
@pytest.mark.parametrize("length", [9, 60])
def test_shared_queries_and_keys_as_in_reformer(form: Form, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """k = q/|q|; a token attends to the others of its buckets, to itself only if there are none."""
    monkeypatch.setattr(lsh_tiles, "SCORES", 64)  # in several pieces
    q, v = (torch.randn(2, 3, length, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    k = torch.nn.functional.normalize(q, dim=-1)
    mechanism = LSH(8, 4, 2, form=form, chunk=3, avoid_self=True)
    plan = mechanism.plan(Causal(), Range(length), like=q)
    assert form == "exact" or tileable(plan, 24) == (length == 60)
    label = mechanism.labels(q, k, plan)
    met = lsh_tiles.match(label.q[..., :, None], label.k[..., None, :]).any(2).tril(-1)
    seen = met | (torch.eye(length).bool() & ~met.any(-1, keepdim=True))
    want = (q @ k.mT / math.sqrt(8)).masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(mechanism.weights(q, k, plan), want)
    got, expected = mechanism(q, k, v, plan).values, want @ v
    torch.testing.assert_close(got, expected)
    for one, two in zip(
        *(torch.autograd.grad(x.square().sum(), (q, v), retain_graph=True) for x in (got, expected)), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_keys_of_a_shared_projection_are_normalized_queries() -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    layer = SharedQKConfig().build(AttentionSizes(16, 2, 2), Softmax())
    layer.mechanism.register_forward_pre_hook(lambda _, given: seen.append(given[:2]))
    x = torch.randn(1, 5, 16)
    layer(x, AttentionContext(Softmax().plan(Causal(), Range(5), like=x), NoRotation()))
    (q, k) = seen[0]
    torch.testing.assert_close(k, q / q.norm(dim=-1, keepdim=True))
