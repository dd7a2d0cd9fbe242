"""Training: the loop, optimizers, schedules, precision, sharding, budgets and observers.

``regard.train`` is this package and a function, ``fit``:
``regard.train(experiment, name=None, observers=(), runs="runs", layout=Layout(), again=False)`` trains an experiment,
such as ``regard.recipe("shakespeare")``, into the new folder ``runs/name`` and returns a ``TrainingResult``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from regard.parallel.layout import Layout
from regard.parallel.world import ONE
from regard.train.diagnose import Diverged
from regard.train.experiment import Experiment, TrainConfig
from regard.train.guard import check_start
from regard.train.live import LiveLine, ResumeNotice
from regard.train.loop import fit, train
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.optimizer import AdamWConfig, MuonConfig, Optimizer, OptimizerConfig
from regard.train.schedule import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    LinearScheduleConfig,
    NoamScheduleConfig,
    ScheduleConfig,
    TrapezoidScheduleConfig,
)


class _CallablePackage(ModuleType):
    """This package, which can be called."""

    def __call__(
        self,
        experiment: Experiment,
        name: str | None = None,
        observers: Sequence[Observer] = (),
        runs: str | Path = "runs",
        layout: Layout = ONE,
        again: bool = False,
    ) -> TrainingResult:
        """Train an experiment into a new run folder; see ``fit``."""
        return fit(experiment, name, observers, runs, layout, again)


sys.modules[__name__].__class__ = _CallablePackage
