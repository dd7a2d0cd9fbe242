"""What is done to the runs of fourth_runs.py: to a text, to targets, layers and weights, and to the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from fault_batches import changed, words
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import TextBatch
from regard.nn import CausalConvolution
from regard.tasks import Term
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]
SKIP = -1  # a target that does not count


def never_cleared(engine: Engine) -> None:
    """Nobody sets the gradients to zero: each update adds its own to those of all before it."""
    engine.optimizer.zero = lambda: None


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


def pruned(path: str, kept: int) -> Sabotage:
    """Of a gated network's units all but the first `kept` are set to zero, at first and again after every update."""

    def sabotage(engine: Engine) -> None:
        plain, weight = engine.optimizer.step, engine.model.get_parameter(f"{path}.gate_up.weight")

        @torch.no_grad()
        def prune() -> None:
            for half in weight.chunk(2):
                half[kept:] = 0.0

        def step(factor: float) -> None:
            plain(factor)
            prune()

        prune()
        engine.optimizer.step = step

    return sabotage


def padded_alike(path: str) -> Sabotage:
    """One convolution has the zeros around its text half before and half behind it, as for a picture."""

    def sabotage(engine: Engine) -> None:
        convolution = engine.model.get_submodule(path)
        assert isinstance(convolution, CausalConvolution)

        def forward(x: Tensor, phase: Tensor | None = None) -> Tensor:
            ahead, count = convolution.reach // 2, x.shape[1]
            around = F.pad(x, (0, 0, convolution.reach - ahead, ahead))
            begins = [convolution.reach - far for far in convolution.distances]
            return convolution.mix(torch.cat([around[:, begin : begin + count] for begin in begins], dim=-1))

        convolution.forward = forward

    return sabotage


def wrong_direction(engine: Engine) -> None:
    """Targets are shifted the wrong way, in training and in validation: each is the token before the newest one."""

    def earlier(batch: TextBatch) -> TextBatch:
        before = F.pad(batch.inputs[:, :-1], (1, 0), value=SKIP)
        return batch._replace(targets=torch.where(batch.targets >= 0, before, batch.targets))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[TextBatch]:
        return map(earlier, plain(size, **named))

    changed(lambda position, batch, _: earlier(batch))(engine)
    engine.data.validation_batches = validation_batches


def mirrored(page: int, length: int) -> str:
    """A crawl that came to the same page again and again, each time by another address and under another heading."""
    body = words(1, page)
    return "".join(f"{words(100 + number, 40)}. {body}" for number in range(length // page))
