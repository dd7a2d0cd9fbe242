"""Reversible blocks: gradients of plain autograd, to the same noise, from memory that does not grow with depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from bench.reversible import Sizes, measure
from blocks_kit import agree, configs, gradients, more, seeds, tokens, wild
from hypothesis import given
from torch import Tensor

from regard.errors import UserError
from regard.models import GPT, GPTConfig, TransformerConfig
from regard.nn.auxiliary_loss import auxiliary_layers, collect
from regard.nn.blocks.block import Stack
from regard.nn.blocks.reversible import Reversible, ReversibleConfig
from regard.nn.experts.moe import MoEConfig

reversible = configs(st.just(ReversibleConfig()))


class Plain(Stack):
    """The same blocks under plain autograd, which keeps everything."""

    def forward(self, x: Tensor, contexts: Any, *, recompute: bool = False) -> Tensor:
        first = second = x
        for block, context in zip(self.layers, contexts, strict=True):
            first = first + block.drop(block.attention(block.norm_attention(second), context))
            second = second + block.drop(block.feedforward(block.norm_feedforward(first)))
        return (first + second) / 2


def both(config: GPTConfig, seed: int, dtype: torch.dtype = torch.float64) -> tuple[GPT, GPT]:
    ours, plain = wild(config, seed, dtype).train(), wild(config, seed, dtype).train()
    plain.blocks.__class__ = Plain
    return ours, plain


def outcome(model: GPT, text: Tensor, seed: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Logits, gradients, and the next random number after the backward pass."""
    torch.manual_seed(seed)
    logits = model(text)
    torch.rand(1)  # others draw too before the backward pass
    weight = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return logits.detach(), gradients(model, (logits * weight).sum()), torch.rand(3)


@more
@given(reversible, seeds, st.sampled_from([0.0, 0.3]), st.integers(1, 9))
def test_gradients_are_those_of_plain_autograd(config: GPTConfig, seed: int, dropout: float, length: int) -> None:
    """Dropout included: it falls again as it did, and the generators are where plain autograd leaves them."""
    text = tokens(2, length, seed)
    got, want = (outcome(model, text, seed) for model in both(replace(config, dropout=dropout), seed))
    agree(got[0], want[0], "logits")
    for name, gradient in want[1].items():
        agree(got[1][name], gradient, f"gradient of {name}")
    assert torch.equal(got[2], want[2])


@pytest.mark.parametrize("repeat", [1, 2])
def test_what_layers_say_beside_their_output_has_its_gradient(repeat: int) -> None:
    """A mixture of experts tells its losses; those of a block that is used twice are told twice."""
    config = GPTConfig(vocabulary=7, width=16, heads=2, layers=2, repeat=repeat, dropout=0.1, zero_init=False)
    config = replace(config, block=ReversibleConfig(), feedforward=MoEConfig(experts=3, balance=0.7, z=0.3))
    found = []
    for model in both(config, 5):
        torch.manual_seed(0)
        logits, auxiliary = collect(model, lambda model=model: model(tokens(2, 9, 0)))
        told = [factor * value for said in auxiliary for factor, value in said.losses.values()]
        assert len(told) == 4
        found.append((torch.stack(told), gradients(model, logits.square().mean() + sum(told))))
        assert not any(layer.collecting or layer.recorded for layer in auxiliary_layers(model))
    agree(found[0][0].detach(), found[1][0].detach(), "losses")
    for name, gradient in found[1][1].items():
        agree(found[0][1][name], gradient, f"gradient of {name}")


def test_dropout_really_falls() -> None:
    config = GPTConfig(vocabulary=7, width=16, heads=2, dropout=0.3, block=ReversibleConfig(), zero_init=False)
    model = wild(config, 0).train()
    assert not torch.equal(model(tokens(2, 5, 0)), model(tokens(2, 5, 0)))


def test_frozen_parameters_have_no_gradient_and_others_keep_theirs() -> None:
    config = GPTConfig(vocabulary=7, width=16, heads=2, block=ReversibleConfig(), zero_init=False)
    ours, plain = both(config, 3)
    for model in (ours, plain):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("feedforward" in name)
        model(tokens(2, 5, 0)).square().sum().backward()
    for (name, one), two in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None) == ("feedforward" not in name)
        if one.grad is not None and two.grad is not None:
            agree(one.grad, two.grad, name)


@pytest.mark.parametrize("inside", [True, False], ids=["backward under autocast", "backward outside"])
def test_automatic_precision_holds_in_both_passes(inside: bool) -> None:
    """The second pass computes in 16 bits as the first did; weights cast without a graph are not taken up again."""
    config = GPTConfig(vocabulary=7, width=16, heads=2, layers=3, block=ReversibleConfig(), zero_init=False)
    found = []
    for model in both(config, 1, torch.float32):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens(2, 9, 0)).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    for one, two in zip(*found, strict=True):
        assert one is not None
        assert (one - two).abs().max() <= 0.05 * two.abs().max()  # bfloat16 has 8 bits


def test_checkpointing_has_no_meaning_here() -> None:
    config = GPTConfig(vocabulary=7, width=16, heads=2, block=ReversibleConfig(), zero_init=False, dropout=0.1)
    model = wild(config, 1).train()
    want = outcome(model, tokens(2, 9, 0), 0)
    model.checkpointing = True
    got = outcome(model, tokens(2, 9, 0), 0)
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(got[1][name], want[1][name]) for name in want[1])


def test_each_branch_is_computed_twice_and_nothing_outside_training_is() -> None:
    model = wild(GPTConfig(vocabulary=7, width=16, heads=2, layers=3, block=ReversibleConfig()), 0).train()
    calls: list[int] = []
    model.get_submodule("blocks.1.attention").register_forward_hook(lambda *_: calls.append(1))
    model(tokens(1, 5, 0)).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        model(tokens(1, 5, 0))
    assert len(calls) == 3


def test_memory_is_flat_in_depth() -> None:
    """24 layers within 1.3 times 6 layers, in what is kept between the passes and in the peak of both."""
    sizes = Sizes(width=32, heads=2, batch=8, length=64)
    ours, plain = ([measure(kind, layers, sizes) for layers in (6, 24)] for kind in ("reversible", "pre-norm"))
    for field in ("kept", "peak"):
        six, many = (getattr(memory, field) for memory in ours)
        assert many <= 1.3 * six, f"{field}: {six:,} bytes with 6 layers, {many:,} with 24"
        six, many = (getattr(memory, field) for memory in plain)
        assert many > 2.5 * six, f"{field}: the measure does not see what plain blocks keep"


def test_it_says_what_it_cannot_do() -> None:
    assert not GPTConfig(block=ReversibleConfig()).build().compilable
    assert GPTConfig().build().compilable
    with pytest.raises(UserError, match="reversible blocks have no cross-attention"):
        TransformerConfig(block=ReversibleConfig()).build()


def test_a_block_undoes_itself() -> None:
    model = wild(GPTConfig(vocabulary=7, width=16, heads=2, layers=1, block=ReversibleConfig()), 0)
    block, caught = model.blocks[0], []
    assert isinstance(block, Reversible)
    block.attention_branch = lambda x, context: caught.append(context) or Reversible.attention_branch(block, x, context)
    with torch.no_grad():
        model(tokens(1, 6, 0))
        one, two = torch.randn(2, 1, 6, 16, dtype=torch.float64)
        first, second = block(one, two, caught[0])
        agree(second - block.feedforward_branch(first), two, "second stream")
        agree(first - block.attention_branch(two, caught[0]), one, "first stream")
