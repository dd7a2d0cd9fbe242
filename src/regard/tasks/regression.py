"""Regression: numbers that describe an array, such as the solubility of a molecule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.config import option
from regard.data.base import Data
from regard.data.examples import ExampleData
from regard.errors import UserError
from regard.models import ArrayEncoder, ModelConfig
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term
from regard.tasks.labeled import outputs


@dataclass(frozen=True)
class RegressionConfig(TaskConfig, kind="regression"):
    """Predict numbers. The data has ``values`` [N, K], those of its training part; NaN is unknown."""

    trains, unit = ArrayEncoder, "example"
    loss: str = option("squared", "squared: the squared error; absolute: its absolute value, which outliers move less")
    means: tuple[float, ...] = option((), "the means in the training part, written by the run")
    deviations: tuple[float, ...] = option((), "the standard deviations there, written by the run")

    def check(self) -> None:
        if self.loss not in ("squared", "absolute"):
            raise ValueError(f"there is no loss {self.loss!r}; choose from squared, absolute")

    def fit(self, data: Data) -> RegressionConfig:
        if not isinstance(data, ExampleData) or data.values is None:
            raise UserError(f"the task regression needs numbers, and {data.name} has none; choose another --task")
        known = torch.from_numpy(data.values).double()
        counts = known.isfinite().sum(0)
        if (counts < 2).any():
            raise UserError(f"{data.name} has fewer than two numbers to train on; check the column of the targets")
        means = known.nansum(0) / counts
        deviations = ((known - means).square().nansum(0) / counts).sqrt().clamp(min=1e-12)
        return replace(self, means=tuple(means.tolist()), deviations=tuple(deviations.tolist()))

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        return model.with_values(len(self.fit(data).means))

    def build(self) -> RegressionTask:
        return RegressionTask(self)


class RegressionTask(Measured[RegressionConfig], Predicting):
    """The squared error in standard deviations. Measures: rmse and mae in the unit of the data, and R²."""

    best = "r2"

    def counts(self, batch: Any) -> dict[str, Tensor]:
        return {"error": batch.targets.isfinite().sum()}

    def measured(self, model: Any, batch: Any) -> tuple[dict[str, Term], Tensor]:
        found, further, details = outputs(model, batch.arguments)
        means, deviations = (found.new_tensor(numbers) for numbers in (self.config.means, self.config.deviations))
        known = batch.targets.isfinite()
        targets = batch.targets.to(found.dtype).nan_to_num()
        error = torch.where(known, found - (targets - means) / deviations, 0)
        each = error.square() if self.config.loss == "squared" else error.abs()
        term = Term(each.sum(), known.sum(), details=details)
        apart, targets = (error * deviations).double(), (targets - means).double() * known
        sums = [known.sum(), apart.square().sum(), apart.abs().sum(), targets.sum(), targets.square().sum()]
        return {"error": term, **further}, torch.stack([one.double() for one in sums])

    def metrics(self, sums: Tensor) -> dict[str, float]:
        count, squares, absolute, total, total_squares = sums.tolist()
        count = max(count, 1)
        spread = total_squares - total**2 / count
        r2 = 1 - squares / spread if spread > 0 else 0.0
        return {"rmse": math.sqrt(squares / count), "mae": absolute / count, "r2": r2}

    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The numbers of each row."""
        found = model(*batch.arguments).float()
        found = found * found.new_tensor(self.config.deviations) + found.new_tensor(self.config.means)
        return [Prediction("  ".join(f"{value:.3f}" for value in row), {"values": row}) for row in found.tolist()]
