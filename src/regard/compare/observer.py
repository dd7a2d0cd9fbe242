"""What is measured at the end of each training, in its process: loss by position, and measures on the test part."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise

from regard.models import LanguageModel
from regard.report.inspection import position_losses
from regard.runs import Run
from regard.runs.disk import JsonObject, write_synced
from regard.tasks import Measured
from regard.train import Observer, TrainingResult, TrainingStart
from regard.train.evaluate import measure
from regard.train.precision import Precision

FILE = "measured.json"


class FinalMeasurements(Observer):
    """Writes ``measured.json`` into the run folder."""

    def started(self, start: TrainingStart) -> None:
        self.start = start

    def finished(self, result: TrainingResult) -> None:
        if result.interrupted:
            return
        start = self.start
        found: JsonObject = {}
        model = start.model.eval()
        if isinstance(model, LanguageModel) and (losses := position_losses(model, start.data)) is not None:
            found["positions"] = losses.mean
        task = start.experiment.task.build()
        if isinstance(task, Measured) and start.data.test_count:
            precision = Precision(start.experiment.train.precision, start.device)
            batches = start.data.test_batches(start.experiment.data.batch)
            found["test"] = measure(model, task, batches, precision)[1]
        start.run.add(FILE, lambda path: write_synced(path, json.dumps(found).encode()))


def measured(run: Run) -> JsonObject:
    """What the observer wrote; empty if it wrote nothing, as after a training that diverged."""
    return json.loads(run.read(FILE)) if run.file(FILE).is_file() else {}


def step_seconds(records: Sequence[JsonObject], save_every: int | None) -> float | None:
    """The median seconds of a training step, from log records between which nothing was evaluated or saved."""
    paused = {record["step"] for record in records if "validation_loss" in record}
    logged = [record for record in records if "loss" in record and "seconds" in record]
    times = [
        (after["seconds"] - before["seconds"]) / (after["step"] - before["step"])
        for before, after in pairwise(logged)
        if before["step"] not in paused
        and not (save_every and before["step"] % save_every == 0)
        and after["step"] > before["step"] > 1
    ]
    return statistics.median(times) if times else None
