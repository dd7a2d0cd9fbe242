"""Evaluation: over all of the held-out part, in sums and counts, so that every target weighs the same."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from regard.train.device import move
from regard.train.engine import Engine


def evaluate(engine: Engine, only: Iterable[Any] | None = None) -> dict[str, float] | None:
    """`{"validation_loss": ...}` over all of the validation part, or `only` some batches; None when there are none.

    A task of several terms also gets each of them, as `validation_<term>`.
    """
    world, totals, counts, weights = engine.world, [], [], {}
    everything = engine.data.validation_batches(engine.experiment.data.batch, rank=world.rank, world=world.size)
    engine.model.eval()
    try:
        with torch.no_grad(), engine.precision.autocast():
            for batch in everything if only is None else only:
                counts.append([float(count) for count in engine.task.counts(batch).values()])
                if engine.graphs:  # or each batch would become a graph of its own, hanging on the one before
                    torch.compiler.cudagraph_mark_step_begin()
                terms = engine.terms(engine.model, move(batch, engine.device))
                weights = {name: term.weight for name, term in terms.items()}
                totals.append(torch.stack([term.total for term in terms.values()]))  # a copy: graphs reuse their memory
    finally:
        engine.model.train()
    if not totals:
        return None
    columns = [math.fsum(column) for column in zip(*torch.stack(totals).tolist(), strict=True)]
    columns += [math.fsum(column) for column in zip(*counts, strict=True)]
    columns = world.sums(columns)
    means = {
        name: total / max(count, 1.0)
        for name, total, count in zip(weights, columns[: len(weights)], columns[len(weights) :], strict=True)
    }
    result = {"validation_loss": sum(weights[name] * mean for name, mean in means.items())}
    if len(means) > 1:
        result |= {f"validation_{name}": mean for name, mean in means.items()}
    return result
