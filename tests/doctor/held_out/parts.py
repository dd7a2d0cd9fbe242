"""A small healthy experiment, and parts of experiments whose faults are chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from run_faults.kit import words, written

from regard.config import option
from regard.data import TextConfig
from regard.models import GPT, GPTConfig
from regard.tasks import LanguageConfig
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig
from regard.train.optimizer import Optimizer, OptimizerConfig

SIZES: dict[str, Any] = {"context": 32, "layers": 2, "heads": 2, "width": 32}
MODELS: dict[str, Callable[[GPT], None]] = {}  # what is done to a model after it was built
DATA: dict[str, type] = {}
TASKS: dict[str, Callable[[LanguageConfig], Any]] = {}
OPTIMIZERS: dict[str, type[Optimizer]] = {}


class HeldOut(NamedTuple):
    """An experiment with a fault, and the finding that names it."""

    kind: str
    where: str  # a regular expression
    make: Callable[[Path], Experiment]


def text(folder: Path, content: str | None = None) -> str:
    return str(written(folder, words(1, 120_000) if content is None else content))


def experiment(folder: Path, model: Any = None, data: Any = None, task: Any = None, **train: Any) -> Experiment:
    """A small GPT on made-up words: healthy unless one of the parts is not."""
    return Experiment(
        model=model or gpt(),
        data=data or TextConfig(path=text(folder), batch=8),
        task=task or LanguageConfig(),
        train=TrainConfig(
            **{
                "steps": 150,
                "optimizer": AdamWConfig(lr=3e-3),
                "schedule": CosineScheduleConfig(),
                "evaluate_every": 50,
                "save_every": None,
                "log_every": 5,
                "device": "cpu",
                **train,
            }
        ),
    )


def gpt(**settings: Any) -> GPTConfig:
    return GPTConfig(**{**SIZES, **settings})


@dataclass(frozen=True)
class FaultyGPTConfig(GPTConfig, kind="held-out-gpt"):
    """A GPT that is changed after it was built."""

    change: str = option("", "the change")

    def make(self) -> GPT:
        model = GPT(self)
        MODELS[self.change](model)
        return model


@dataclass(frozen=True)
class FaultyTextConfig(TextConfig, kind="held-out-text"):
    """Text with other batches."""

    change: str = option("", "the change")

    def build(self, context: int, cache: Path | None = None) -> Any:
        data = super().build(context, cache)
        data.__class__ = DATA[self.change]
        return data


@dataclass(frozen=True)
class FaultyTaskConfig(LanguageConfig, kind="held-out-task"):
    """Another loss."""

    change: str = option("", "the change")

    def build(self) -> Any:
        return TASKS[self.change](self)


@dataclass(frozen=True)
class FaultyAdamWConfig(AdamWConfig, kind="held-out-adamw"):
    """AdamW, used wrongly."""

    change: str = option("", "the change")

    def build(self, model: Any) -> Optimizer:
        if self.change == "misses":
            kept = [p for name, p in model.named_parameters() if not name.startswith("blocks.1.")]
            return Optimizer(model, [self.over(kept)])
        optimizer = super().build(model)
        optimizer.__class__ = OPTIMIZERS[self.change]
        return optimizer


@dataclass(frozen=True)
class SGDConfig(OptimizerConfig, kind="held-out-sgd"):
    """Stochastic gradient descent with momentum."""

    lr: float = option(0.1, "the peak learning rate")

    def build(self, model: Any) -> Optimizer:
        return Optimizer(model, [torch.optim.SGD([p for p in model.parameters() if p.requires_grad], self.lr, 0.9)])


def changed_model(change: str, **settings: Any) -> Callable[[Path], Experiment]:
    return lambda folder: experiment(folder, model=FaultyGPTConfig(**{**SIZES, **settings}, change=change))


def changed_text(change: str, **train: Any) -> Callable[[Path], Experiment]:
    return lambda folder: experiment(folder, data=FaultyTextConfig(path=text(folder), batch=8, change=change), **train)


def changed_task(change: str, **train: Any) -> Callable[[Path], Experiment]:
    return lambda folder: experiment(folder, task=FaultyTaskConfig(change=change), **train)


def changed_optimizer(change: str, model: Any = None, **train: Any) -> Callable[[Path], Experiment]:
    chosen = FaultyAdamWConfig(lr=3e-3, change=change)
    return lambda folder: experiment(folder, model=model, optimizer=chosen, **train)


def trained_with(model: Any = None, **train: Any) -> Callable[[Path], Experiment]:
    return lambda folder: experiment(folder, model=model, **train)
