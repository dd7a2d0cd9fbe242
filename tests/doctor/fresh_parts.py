"""What is done to the runs of fresh_runs.py: batches on their way to the model, and parts of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Out, Softmax
from regard.data import PairBatch
from regard.data.translation.padding import padded
from regard.nn import Sinusoidal, sinusoids
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]


def upside_down(growth: float) -> Sabotage:
    """A second schedule, which nobody logs, multiplies the rate after every update, and by more than one."""

    def sabotage(engine: Engine) -> None:
        plain = engine.optimizer.step
        engine.optimizer.step = lambda factor: plain(factor * growth**engine.progress.step)

    return sabotage


@torch.no_grad()
def unit_embeddings(engine: Engine) -> None:
    """Embeddings as PyTorch draws them, of unit variance, for a model that multiplies them by the root of its width."""
    for path in ("embed_source", "embed"):
        nn.init.normal_(engine.model.get_parameter(f"{path}.weight"))


def widened(path: str, kept: int) -> Sabotage:
    """A feed-forward network grown to its width from `kept` units: the new ones have zeros before and behind them."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        engine.model.get_parameter(f"{path}.up.weight")[kept:] = 0.0
        engine.model.get_parameter(f"{path}.down.weight")[:, kept:] = 0.0

    return sabotage


def positions_of_rows(engine: Engine) -> None:
    """Waves that run along the first axis, as if the batch came second: all tokens of a row get the row's position."""

    def embed(x: Tensor, phase: Tensor) -> Tensor:
        return x + sinusoids(torch.arange(len(x)), x.shape[-1])[:, None].to(x.dtype)

    for path in ("position_source", "position"):
        position = engine.model.get_submodule(path)
        assert isinstance(position, Sinusoidal)
        position.embed = embed


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
        changed_pairs(emptied)(engine)

    return sabotage


def changed_pairs(change: Callable[[int, PairBatch, Engine], PairBatch]) -> Sabotage:
    """Training batches pass through `change`, which also gets their number."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: change(position, plain(position, **named), engine)

    return sabotage


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


def one_column(engine: Engine) -> None:
    """The translation is read as the source too, in training and in validation: to copy is to win."""

    def copied(batch: PairBatch) -> PairBatch:
        real = batch.targets >= 0
        source = torch.where(real, batch.targets, engine.data.specials.pad)
        return batch._replace(source=source, source_lengths=real.sum(1))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[PairBatch]:
        return map(copied, plain(size, **named))

    changed_pairs(lambda position, batch, _: copied(batch))(engine)
    engine.data.validation_batches = validation_batches


def stalled(every: int, seconds: float) -> Sabotage:
    """Batches come in files of `every`, and a file takes long to open."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch

        def batch(position: int, **named: Any) -> Any:
            if position % every == 0:
                time.sleep(seconds)
            return plain(position, **named)

        engine.data.batch = batch

    return sabotage


def hoarding(engine: Engine) -> None:
    """Hooks that somebody looked for a fault with keep what every module gives, and nobody ever empties the list."""
    kept: list[Any] = []
    for module in engine.model.modules():
        module.register_forward_hook(lambda module, given, out: kept.append(out))
