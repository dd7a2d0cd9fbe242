"""A training that early stopping has ended although it still improved."""

from collections.abc import Sequence

from regard.doctor import Check, Findings
from regard.doctor.context import Record
from regard.tasks import Measured

UNCLEAR = 1e-9  # the least improvement of a measure


class WrongStop(Check):
    kind, description = "wrong_stop", "early stopping ended a training that improved"
    rank = 0

    def on_end(self, records: Sequence[Record]) -> Findings:
        train, task = self.run.experiment.train, self.run.task
        best = task.best if isinstance(task, Measured) else None
        name, sign = ("validation_loss", -1) if best is None else (f"validation_{best}", 1)
        measured = [(one["step"], sign * value) for one in records if isinstance(value := one.get(name), float)]
        if train.patience is None or len(measured) <= train.patience:
            return
        ended = records[-1]["step"] < (train.steps or 0)
        since = train.patience  # evaluations in a row that must be no better than an earlier one
        earlier, last = (max(value for _, value in part) for part in (measured[:-since], measured[-since:]))
        if ended and last > earlier + UNCLEAR:
            step = next(step for step, value in measured if value == last)
            evidence = f"it ended at step {records[-1]['step']} of {train.steps}, and step {step} was the best so far: "
            evidence += f"{name} {sign * last:.4g}, before at best {sign * earlier:.4g}"
            cause = "the worse of two evaluations is taken for the better one, so the worst weights are kept"
            change = "compare with the right sign: accuracy and the like go up, losses go down"
            yield self.finding("train.patience", evidence, cause, change)
