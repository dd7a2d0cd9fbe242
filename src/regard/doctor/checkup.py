"""One look at a model and its data: what a run's observer does now and then, and `regard doctor` once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from regard.doctor import batches, limits
from regard.doctor import dependency as reach
from regard.doctor.finding import Finding
from regard.doctor.inside import Inside, Terms
from regard.doctor.texts import Reader
from regard.nn import NoPositionConfig
from regard.train.device import move


class Checkup:
    """A model, the data it learns from, and ``get``, which gives a batch by its number."""

    def __init__(self, experiment: Any, model: nn.Module, data: Any, get: Callable[[int], Any], terms: Terms):
        self.experiment, self.model, self.data, self.get, self.terms = experiment, model, data, get, terms
        self.vocabulary: int | None = getattr(experiment.model, "vocabulary", None)
        self._looks = 0
        self._inside = Inside(model, terms)
        self._reader = Reader(data, getattr(experiment.model, "context", limits.RUN))

    def batches(self, newest: int, patience: float) -> tuple[batches.Fetched, list[Finding]]:
        """The newest batches, and what is wrong with them."""
        fetched = batches.fetch(self.get, newest, patience)
        return fetched, list(batches.judge(fetched, self.vocabulary, self._epoch()))

    def model_on(self, batch: Any, device: torch.device) -> Iterator[Finding]:
        """What the model shows on one batch."""
        batch = move(batch, device)
        yield from self._inside.look(batch)
        if self.vocabulary:
            position = getattr(self.experiment.model, "position", None)
            told = position is not None and not isinstance(position, NoPositionConfig)
            yield from reach.judge(self.model, self.terms, batch, self.vocabulary, told, self._looks)
        self._looks += 1

    def text(self, patience: float) -> Iterator[Finding]:
        """What is wrong with the text as a whole, as far as it was read."""
        yield from self._reader.read(patience)

    def _epoch(self) -> float:
        """In how many batches all text comes once."""
        return self.data.epoch(self.experiment.data.batch)
