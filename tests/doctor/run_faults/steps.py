"""Faults of single steps: the loss, the gradient, clipping, the learning rate, the update and the batch counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.train import AdamWConfig
from regard.train.engine import Engine
from run_faults.kit import Case, Fault, Sabotage, Seen, altered, training

SHORT: dict[str, Any] = {"steps": 24, "evaluate_every": 12}


def not_cleared(engine: Engine) -> None:
    """Gradients add up over the steps."""
    engine.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]


def last_only(engine: Engine) -> None:
    """Of the micro-batches of a step, the last one's gradient is used alone."""
    plain = engine.seed_dropout

    def seed(*place: int) -> None:
        engine.optimizer.zero_grad()
        plain(*place)

    engine.seed_dropout = seed  # type: ignore[method-assign]


def reversed_gradient(engine: Engine) -> None:
    """The gradient of one matrix has the wrong sign."""
    engine.model.get_parameter("blocks.1.attention.out.weight").register_hook(lambda grad: -grad)


def clipped_elsewhere(engine: Engine) -> None:
    """Gradients are clipped at a hundredth of the norm that is configured."""

    def clip(gradients: list[torch.Tensor], norm: float) -> None:
        torch._foreach_mul_(gradients, min(1.0, 0.01 / norm))

    engine._clip = clip  # type: ignore[method-assign]


def summed_over_rows(engine: Engine) -> None:
    """The loss of a row counts as often as its number says."""
    plain = engine.task.terms

    def terms(model: Any, batch: Any) -> Any:
        rows = torch.arange(len(batch.inputs)).repeat_interleave(torch.arange(len(batch.inputs)))
        found = plain(model, batch._replace(inputs=batch.inputs[rows], targets=batch.targets[rows]))
        return {name: term._replace(total=term.total / 2) for name, term in found.items()}

    engine.terms = terms


def rate_of_the_start(engine: Engine) -> None:
    """The learning rate stays at that of the second step."""
    plain = engine.optimizer.learning_rates
    engine.optimizer.learning_rates = lambda factor: plain(min(factor, 0.4))  # type: ignore[method-assign]


def decayed_much(engine: Engine) -> None:
    """The weight decay of the matrices is not the configured one."""
    engine.optimizer.groups[0]["weight_decay"] = 5.0


def put_back(engine: Engine) -> None:
    """After every update, one matrix gets its old values back."""
    weight, plain = engine.model.get_parameter("blocks.0.feedforward.up.weight"), engine.optimizer.step

    def step(factor: float) -> None:
        before = weight.detach().clone()
        plain(factor)
        weight.data.copy_(before)

    engine.optimizer.step = step  # type: ignore[method-assign]


def against(engine: Engine) -> None:
    """Every update has the wrong sign."""
    plain = engine.optimizer.step

    def step(factor: float) -> None:
        before = [p.detach().clone() for p in engine.optimizer.parameters]
        plain(factor)
        for p, old in zip(engine.optimizer.parameters, before, strict=True):
            p.data.copy_(2 * old - p)

    engine.optimizer.step = step  # type: ignore[method-assign]


def forgetful(engine: Engine) -> None:
    """The moments of the optimizer are lost after every update."""
    plain = engine.optimizer.step

    def step(factor: float) -> None:
        plain(factor)
        for part in engine.optimizer.parts:
            part.state.clear()

    engine.optimizer.step = step  # type: ignore[method-assign]


def two_steps(engine: Engine) -> None:
    """The optimizer makes two steps with every gradient."""
    plain = engine.optimizer.step

    def step(factor: float) -> None:
        plain(factor)
        plain(factor)

    engine.optimizer.step = step  # type: ignore[method-assign]


def standing_still(engine: Engine) -> None:
    """Every step takes the first batch."""
    plain = engine.update

    def update() -> Any:
        engine.progress.position = 0
        return plain()

    engine.update = update  # type: ignore[method-assign]


def without_embedding(engine: Engine) -> None:
    """The optimizer was made without the embedding."""
    first = engine.model.get_parameter("embed.weight")
    for group in engine.optimizer.groups:
        group["params"][:] = [p for p in group["params"] if p is not first]


def moved(seen: Seen, name: str) -> float:
    return max(step[name] for step in seen.record.moves)


def accumulated(folder: Path) -> Case:
    return Case(training(folder, train={**SHORT, "accumulate": 4}), last_only)


def heavy(folder: Path) -> Case:
    optimizer = AdamWConfig(lr=5e-3, weight_decay=60.0)
    return Case(training(folder, train={**SHORT, "optimizer": optimizer}), sound=training(folder, train=SHORT))


@dataclass(frozen=True)
class ClimbingConfig(AdamWConfig, kind="climbing-adamw"):
    """AdamW with the wrong sign."""

    def build(self, model: Any, rates: Any = None) -> Any:
        optimizer = super().build(model, rates)
        for group in optimizer.groups:
            group["maximize"] = True
        return optimizer


def climbing(folder: Path) -> Case:
    optimizer = ClimbingConfig(lr=5e-3)
    return Case(training(folder, train={**SHORT, "optimizer": optimizer}), sound=training(folder, train=SHORT))


def fault(name: str, kind: str, where: str, sabotage: Sabotage, shows: Callable[[Seen], bool], **more: Any) -> Fault:
    about = (sabotage.__doc__ or "").strip()
    return Fault(name, kind, where, about, more.pop("make", altered(sabotage, **SHORT)), shows, False, True)


def patched(what: str) -> Callable[[Seen], bool]:
    """Whether a method of the engine or of its optimizer was replaced."""
    return lambda seen: what in vars(seen.ended.engine) or what in vars(seen.ended.engine.optimizer)


FAULTS: list[Fault] = [
    fault("gradients of the step before", "step_differs", "gradient", not_cleared, patched("zero_grad")),
    fault("last micro-batch alone", "step_differs", "gradient", last_only, patched("seed_dropout"), make=accumulated),
    fault(
        "sign of one gradient",
        "step_differs",
        r"blocks\.1\.attention\.out",
        reversed_gradient,
        lambda seen: bool(seen.model.get_parameter("blocks.1.attention.out.weight")._backward_hooks),
    ),
    fault("clipped at another norm", "step_differs", r"train\.clip", clipped_elsewhere, patched("_clip")),
    fault(
        "rows count by their number",
        "step_differs",
        "loss",
        summed_over_rows,
        lambda seen: (
            "terms" in seen.ended.engine.terms.__qualname__.split("<locals>")[-1]
            and seen.ended.engine.terms.__qualname__.startswith("summed")
        ),
    ),
    fault("rate of the warm-up", "step_differs", r"train\.schedule", rate_of_the_start, patched("learning_rates")),
    fault(
        "decay not configured",
        "step_differs",
        r"train\.optimizer|weight",
        decayed_much,
        lambda seen: seen.ended.engine.optimizer.groups[0]["weight_decay"] > 1,
    ),
    fault(
        "weights put back",
        "foreign_writes",
        r"blocks\.0\.feedforward",
        put_back,
        lambda seen: moved(seen, "blocks.0.feedforward.up.weight") == 0,
    ),
    fault("updates of the wrong sign", "foreign_writes", "optimizer", against, patched("step")),
    Fault(
        "optimizer that climbs",
        "update_raises_loss",
        "optimizer",
        "An optimizer of one's own maximizes the loss; a replay of its steps does the same.",
        climbing,
        shows=lambda seen: seen.record.losses[-1] > seen.record.losses[0],
        listed=False,
        quick=True,
    ),
    fault("moments lost", "foreign_writes", "optimizer", forgetful, patched("step")),
    fault("two steps in each update", "foreign_writes", "optimizer", two_steps, patched("step")),
    fault("first batch again and again", "step_differs", "", standing_still, patched("update")),
    fault(
        "embedding without optimizer",
        "unoptimized_parameters",
        "embed",
        without_embedding,
        lambda seen: moved(seen, "embed.weight") == 0,
    ),
    Fault(
        "decay heavier than the gradient",
        "setting_dominates",
        r"weight_decay",
        "The configured weight decay is six hundred times the usual one.",
        heavy,
        shows=lambda seen: seen.case.experiment.train.optimizer.weight_decay > 1,  # type: ignore[attr-defined]
        listed=False,
        quick=True,
    ),
]
