"""Law 5c: the future has exactly zero gradient, and changing it changes nothing, to the bit."""

from __future__ import annotations

from collections import Counter
from functools import partial

import hypothesis.strategies as st
import torch
from gpts import VOCABULARY, configs, tokens, untouched, wild
from hypothesis import given
from strategies import Case, agree, cases, examples, few, in_fair_shares, seeds

from regard.attention import BACKENDS, Causal, Packed, Padded, Range
from regard.models import GPTConfig
from regard.nn.mixers import S4DConfig

RAN: Counter[str] = Counter()


@in_fair_shares(RAN, small_cpu=0.05, sdpa=0.1, banded=0.3, reference=1.0)
@examples(3)
@given(cases(few | st.just(70), own=True), st.booleans(), st.data())
def test_a_causal_row_is_blind_to_what_comes_after(case: Case, plain: bool, data: st.DataObject) -> None:
    """Nothing at or past a cut reaches a row before it, whatever else the mask says, in any backend."""
    mask = Causal() if plain else Causal() & case.mask
    slots = case.queries
    place = data.draw(st.integers(0, slots.length - 1), label="cut")
    order = slots.at(torch.arange(slots.rows)[:, None], torch.arange(slots.length)[None]).order
    past = (order < order[:, place : place + 1]).expand(case.batch, slots.length)  # [B, N]
    RAN["cases"] += 1
    for name, backend in BACKENDS.items():
        mechanism = case.mechanism("auto")
        q, k, v = case.tensors()
        if backend.refuses(mechanism.call(q, k, v, mechanism.plan(mask, slots, like=q))):
            continue
        RAN[name] += 1
        mechanism.backend = name
        plan = mechanism.plan(mask, slots, like=q)
        before = mechanism(q, k, v, plan).values.transpose(1, 2)[past]
        of_k, of_v = torch.autograd.grad(before.sum(), (k, v), materialize_grads=True)
        assert not of_k.transpose(1, 2)[~past].any(), f"{name}: the future's keys have a gradient"
        assert not of_v.transpose(1, 2)[~past].any(), f"{name}: the future's values have a gradient"
        later = ~past[:, None, :, None]
        k, v = (torch.where(later, x.detach() * -3 + 7, x.detach()) for x in (k, v))
        assert torch.equal(mechanism(q, k, v, plan).values.transpose(1, 2)[past], before), f"{name}: not bit-equal"


@examples(2)
@given(
    configs(), seeds, st.integers(1, 3), st.integers(2, 24), st.sampled_from([torch.float32, torch.float64]), st.data()
)
def test_a_gpt_does_not_see_the_future(
    config: GPTConfig, seed: int, rows: int, length: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    model = wild(config, seed, dtype)
    text = tokens(rows, length, seed)
    cut = data.draw(st.integers(1, length - 1), label="cut")
    kinds = [Range(length), Padded(torch.full((rows,), length), length), Packed.of([[cut, length - cut]] * rows)]
    slots = data.draw(st.sampled_from(kinds), label="slots")
    other = text.clone()
    other[:, cut:] = (other[:, cut:] + 1) % VOCABULARY
    transformed = isinstance(config.attention, S4DConfig)  # by Fourier: the future changes the past by rounding
    same = partial(agree, what="the past") if transformed else partial(untouched, config.feedforward)
    same(model(other, slots)[:, :cut], model(text, slots)[:, :cut])

    caught = []
    hook = model.embed.register_forward_hook(lambda _, __, out: caught.append(out) or out)
    logits = model(text, slots)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, :cut].sum(), caught)
    most = 1e-4 * gradient.abs().max() if transformed else 0
    assert (gradient[:, cut:].abs() <= most).all()
    assert gradient.isfinite().all()
