"""Faults that make the loss jump or not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import LinearConfig, Out, Softmax, WindowConfig
from regard.data import PairBatch, TextBatch
from regard.data.translation.encoded_sentences import padded
from regard.models import BahdanauConfig, RecurrentConfig, Seq2SeqConfig
from regard.nn import GELUConfig, LayerNorm, LayerNormConfig
from regard.tasks import Term
from regard.train import Diverged
from regard.train.engine import Engine
from run_faults.kit import (
    RARE,
    TOKENS,
    Case,
    Fault,
    Sabotage,
    Seen,
    altered,
    changed,
    gpt,
    mistranslated,
    noise,
    training,
    translation,
    words,
)
from run_faults.sabotage import SKIP, planted

SEQ2SEQ = Seq2SeqConfig(context=64, width=64, dropout=0.0, attention=BahdanauConfig())


def poisoned(number: int) -> Sabotage:
    """One batch is noise: its targets have nothing to do with its inputs."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        if position != number:
            return batch
        generator = torch.Generator().manual_seed(number)
        shape, vocabulary = batch.targets.shape, engine.data.vocabulary
        return batch._replace(targets=torch.randint(vocabulary, shape, generator=generator))

    return changed(change)


def poisoned_part(folder: Path) -> Case:
    experiment = training(folder, train={"accumulate": 2, "steps": 50}, batch=4)
    return Case(experiment, poisoned(81))


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
    return int(engine.data.tokenizer.encode(RARE)[0])


def broken_row(number: int) -> Sabotage:
    """The embedding of a rare character is not a number, and batch `number` is the first to have that character."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        engine.model.get_parameter("embed.weight")[rare(engine)] = torch.nan
        planted(number, rare)(engine)

    return sabotage


def strange_stretch(folder: Path) -> Case:
    """One row reads the text from its beginning to its end; around its 41st window every letter is drawn at random."""
    model = RecurrentConfig(cell="lstm", context=128, layers=1, width=64, carry=True)
    text, first, last = words(1, 9000), 40 * 128, 42 * 128
    torn = text[:first] + noise(1, last - first) + text[last:]
    sound = training(folder, text, model, batch=1, order="consecutive")
    return Case(training(folder, torn, model, batch=1, order="consecutive"), sound=sound)


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


def exchanged(number: int) -> Sabotage:
    """The two columns of one batch have changed places: it translates back."""

    def sabotage(engine: Engine) -> None:
        data, plain = engine.data, engine.data.batch

        def batch(position: int, **named: Any) -> PairBatch:
            if position != number:
                return plain(position, **named)
            pairs = data._train.pick(data._buckets.rows(position, **named))
            return padded(pairs.target, pairs.source, data.specials, data.context)

        data.batch = batch

    return sabotage


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
        source[0], lengths[0] = engine.data.specials.pad, 0
        return batch._replace(source=source, source_lengths=lengths)

    def sabotage(engine: Engine) -> None:
        for module in engine.model.get_submodule("encoder").modules():
            if isinstance(module, Softmax):
                module.forward = forward
        changed(emptied)(engine)

    return sabotage


def miscomputed(path: str, update: int) -> Sabotage:
    """In one update a faulty device gives noise for a module's output."""

    def sabotage(engine: Engine) -> None:
        def after(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:
            if not module.training or engine.progress.step != update:
                return None
            return 100 * torch.randn(out.shape, generator=torch.Generator().manual_seed(update))

        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def one_update_miscomputed(seen: Seen) -> bool:
    """The loss of one update is far too high, that of the next is not, and neither is that of the same batch again."""
    engine, losses, batch = seen.ended.engine, seen.record.losses, seen.batch(35)
    with torch.no_grad():
        again = float(engine.terms(engine.model, batch)["next_token"].total) / batch.targets.numel()
    return seen.spike(35) > 1.0 and max(again, losses[36]) < losses[35] - 1.0


def hidden_logits(engine: Engine) -> None:
    """The marks that no translation has are kept from it: their logits are minus infinity."""
    pad, begin, _ = engine.data.specials

    def after(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out.index_fill(-1, torch.tensor([pad, begin]), -torch.inf)

    engine.model.get_submodule("unembed").register_forward_hook(after)


def drawn_anew(path: str, update: int) -> Sabotage:
    """The run was taken up again at one update, and one matrix, of another name in the checkpoint, was not restored."""

    def sabotage(engine: Engine) -> None:
        plain, weight = engine.optimizer.step, engine.model.get_parameter(path)

        @torch.no_grad()
        def step(factor: float) -> None:
            plain(factor)
            if engine.progress.step == update - 1:
                nn.init.normal_(weight, std=0.02, generator=torch.Generator().manual_seed(update))

        engine.optimizer.step = step

    return sabotage


def renamed(folder: Path) -> Case:
    model = gpt(tied=False, attention=WindowConfig(size=8))
    return Case(training(folder, model=model, tokenizer=TOKENS), drawn_anew("unembed.weight", 45))


def head_forgotten(seen: Seen) -> bool:
    """One update's loss is that of a guess, and the next ones fall from there."""
    losses = seen.record.losses
    return abs(losses[45] - np.log(seen.model.config.vocabulary)) < 0.1 and seen.spike(45) > 3 and losses[55] > 3


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
        "poisoned batch",
        "loss_spike",
        r"\b41\b",
        "The targets of one batch are noise.",
        altered(poisoned(41)),
        shows=lambda seen: seen.spike(41) > 1.0,
        quick=True,
    ),
    Fault(
        "poisoned micro-batch",
        "loss_spike",
        r"\b81\b",
        "The targets of one micro-batch are noise, and an update takes two.",
        poisoned_part,
        shows=lambda seen: seen.spike(81 // 2) > 0.5,
    ),
    Fault(
        "strange stretch of text",
        "loss_spike",
        r"\b(?:39|40|41)\b",
        "Text is read in order, and a stretch in its middle is no text.",
        strange_stretch,
        shows=lambda seen: seen.spike(40) > 1.0,
        listed=False,
    ),
    Fault(
        "columns exchanged",
        "loss_spike",
        r"\b37\b",
        "In one batch, source and translation have changed places.",
        lambda folder: Case(translation(folder, SEQ2SEQ), exchanged(37)),
        shows=lambda seen: seen.spike(37) > 1.0,
        listed=False,
    ),
    Fault(
        "faulty device",
        "loss_spike",
        r"\b35\b|blocks\.1\b",
        "In one update a device miscomputes what a layer gives; no batch is at fault.",
        altered(miscomputed("blocks.1.attention", 35), gpt(attention=WindowConfig(size=8))),
        shows=one_update_miscomputed,
        listed=False,
    ),
    Fault(
        "head not restored",
        "loss_spike",
        r"\b4[45]\b|unembed",
        "Taken up again, the run has all weights but those of its head, which the checkpoint has by another name.",
        renamed,
        shows=head_forgotten,
        listed=False,
    ),
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
