"""Faults that make a loss, a gradient or a weight NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import LinearConfig, Out, Softmax
from regard.data import PairBatch, TextBatch
from regard.nn.feedforward import GELUConfig
from regard.nn.norm import LayerNorm, LayerNormConfig
from regard.tasks import Term
from regard.train import Diverged
from regard.train.engine import Engine
from run_faults.kit import (
    RARE,
    Case,
    Fault,
    Sabotage,
    Seen,
    altered,
    changed,
    dataset,
    gpt,
    mistranslated,
    training,
    translation,
)
from run_faults.sabotage import SKIP, planted


def exponential(block: int) -> Sabotage:
    """An exponential in the place of one layer's activation, over weights that make it overflow."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        feedforward: Any = engine.model.get_submodule(f"blocks.{block}.feedforward")
        feedforward.activation = torch.exp
        feedforward.up.weight *= 2000

    return sabotage


def diverged(module: str, position: int) -> Callable[[Seen], bool]:
    """The training ends with a number that is not finite, there and then."""

    def check(seen: Seen) -> bool:
        error = seen.ended.error
        return isinstance(error, Diverged) and str(error.module).startswith(module) and error.position == position

    return check


def rare(engine: Engine) -> int:
    """The token of the character that occurs once in the text."""
    return int(dataset(engine).tokenizer.encode(RARE)[0])


def broken_row(number: int) -> Sabotage:
    """The embedding of a rare character is not a number, and batch `number` is the first to have that character."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        engine.model.get_parameter("embed.weight")[rare(engine)] = torch.nan
        planted(number, rare)(engine)

    return sabotage


class Deviation(nn.Module):
    """A LayerNorm by hand, whose eps is added after the root: finite for equal numbers, but its slope is not."""

    def __init__(self, gain: nn.Parameter):
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.gain * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)


def zero_row(number: int) -> Sabotage:
    """The first block's norm is a `Deviation`, and batch `number` the first to have a character whose row is zero."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        block: Any = engine.model.get_submodule("blocks.0")
        assert isinstance(block.norm_attention, LayerNorm)
        block.norm_attention = Deviation(block.norm_attention.gain)
        engine.model.get_parameter("embed.weight")[rare(engine)] = 0.0
        planted(number, rare)(engine)

    return sabotage


def slopeless(seen: Seen) -> bool:
    """The training ends with the 21st batch, every output and the loss finite, and the embedding's gradient not."""
    error, named = seen.ended.error, seen.model.named_parameters()
    broken = [name for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
    return isinstance(error, Diverged) and (error.position, error.module, broken) == (20, None, ["embed.weight"])


def blank_line(number: int) -> Sabotage:
    """The encoder hides padding by hand, and a source of batch `number` is empty: a softmax over nothing."""

    def forward(q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Out:
        hidden = ~plan.keys.filled()[:, None, None]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return Out(scores.softmax(-1) @ v, None)

    def emptied(position: int, batch: PairBatch, engine: Engine) -> PairBatch:
        if position != number:
            return batch
        source, lengths = batch.source.clone(), batch.source_lengths.clone()
        source[0], lengths[0] = dataset(engine).specials.pad, 0
        return batch._replace(source=source, source_lengths=lengths)

    def sabotage(engine: Engine) -> None:
        for module in engine.model.get_submodule("encoder").modules():
            if isinstance(module, Softmax):
                module.forward = forward
        changed(emptied)(engine)

    return sabotage


def hidden_logits(engine: Engine) -> None:
    """The marks that no translation has are kept from it: their logits are minus infinity."""
    pad, begin, _ = dataset(engine).specials

    def after(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out.index_fill(-1, torch.tensor([pad, begin]), -torch.inf)

    engine.model.get_submodule("unembed").register_forward_hook(after)


def all_prompt(number: int) -> Sabotage:
    """The loss is a mean over the targets that count, and those of batch `number` are all of a prompt."""

    def hidden(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        return batch._replace(targets=torch.full_like(batch.targets, SKIP)) if position == number else batch

    def sabotage(engine: Engine) -> None:
        plain = engine.task.terms

        def terms(model: nn.Module, batch: Any) -> dict[str, Term]:
            found = plain(model, batch)
            term = found["next_token"]
            return {**found, "next_token": term._replace(total=term.total / term.count * term.count)}

        engine.task.terms = engine.terms = terms
        changed(hidden)(engine)

    return sabotage


def micro_batch_of_prompt(folder: Path) -> Case:
    experiment = training(folder, model=gpt(attention=LinearConfig()), train={"accumulate": 2, "steps": 50}, batch=4)
    return Case(experiment, all_prompt(51))


FAULTS: list[Fault] = [
    Fault(
        "activation overflows",
        "non_finite",
        r"blocks\.1\.feedforward",
        "An exponential as one layer's activation overflows.",
        altered(exponential(1), gpt(feedforward=GELUConfig())),
        shows=diverged("blocks.1.feedforward", 0),
        quick=True,
    ),
    Fault(
        "embedding of a rare token broken",
        "non_finite",
        r"\bembed\b",
        "One row of the embedding is NaN; the first batch with that token is the 21st.",
        altered(broken_row(20), gpt(tied=False)),
        shows=diverged("embed", 20),
        quick=True,
    ),
    Fault(
        "root of nothing",
        "non_finite",
        r"\bembed\b|blocks\.0\.norm_attention",
        "A norm by hand meets a row of zeros in the 21st batch: its output is finite, its gradient is not.",
        altered(zero_row(20), gpt(tied=False, norm=LayerNormConfig(bias=False))),
        shows=slopeless,
        listed=False,
    ),
    Fault(
        "blank line",
        "non_finite",
        r"encoder\.0\.attention|\b18\b",
        "One source is empty, and the encoder hides padding by hand: a softmax over nothing.",
        mistranslated(blank_line(18)),
        shows=diverged("encoder.0.attention", 18),
        listed=False,
    ),
    Fault(
        "smoothing over hidden tokens",
        "non_finite",
        r"unembed|\bhead\b|next_token|\bloss\b|smoothing",
        "Tokens that must not be written have a logit of minus infinity, and smoothed labels give them a share.",
        lambda folder: Case(translation(folder), hidden_logits),
        shows=diverged("unembed", 0),
        listed=False,
    ),
    Fault(
        "nothing but prompt",
        "non_finite",
        r"\b51\b|next_token|\bloss\b|target",
        "The loss is a mean over the targets that count, and in one micro-batch none does.",
        micro_batch_of_prompt,
        shows=diverged("the loss term next_token", 51),
        listed=False,
    ),
]
