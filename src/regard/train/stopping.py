"""Early stopping: training ends when the validation measure has not improved for some time, with the best weights."""

import torch
from torch import Tensor

from regard.data.origins.progress import say
from regard.parallel.tensors import weights
from regard.tasks import Measured
from regard.train.engine import Engine


class EarlyStopping:
    """Keeps a copy of the best weights. ``patience`` None: nothing is kept, and nothing stops.

    The measure is that of the task, or else the loss. A resumed run compares the evaluations since it was resumed.
    """

    def __init__(self, engine: Engine, patience: int | None):
        self.engine, self.patience = engine, patience
        self.best: float | None = None
        self.step, self.failures = 0, 0
        self._kept: dict[str, Tensor] = {}

    @property
    def stops(self) -> bool:
        """Whether so many evaluations in a row were no better than the best one."""
        return self.patience is not None and self.failures >= self.patience

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Compare an evaluation with the best one, and keep the weights if it is better."""
        if self.patience is None:
            return
        task = self.engine.task
        best = task.best if isinstance(task, Measured) else None
        score = -measures["validation_loss"] if best is None else measures[f"validation_{best}"]
        if self.best is not None and not score > self.best:
            self.failures += 1
            return
        self.best, self.step, self.failures = score, step, 0
        self._kept = {name: tensor.detach().clone() for name, tensor in weights(self.engine.model).items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the best weights back."""
        if self.best is None or self.step == self.engine.progress.step:
            return
        for name, tensor in weights(self.engine.model).items():
            tensor.copy_(self._kept[name])
        if self.engine.world.rank == 0:
            say(f"the weights are those of step {self.step}, the best evaluation")
