"""Weights & Biases and MLflow as observers: the config, the logged steps, the evaluations and the result of a run."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from regard.config import dump
from regard.config.notation import PlainTable
from regard.errors import UserError
from regard.runs.disk import replace_file
from regard.train.experiment import Experiment
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep


class Tracker(Observer):
    """Base class: decides what is logged. A subclass says where to.

    A tracker that fails during training ends its own logging, never the training.
    """

    package: str  # the Python package, and the name of the extra and of the option

    def __init__(self) -> None:
        """Raise a UserError if the package is missing."""
        try:
            self.api: Any = importlib.import_module(self.package)
        except ImportError:
            raise UserError(
                f"{self.package} is not installed; install it: pip install 'regard[{self.package}]'"
            ) from None
        self._open = False

    def open(self, start: TrainingStart, config: dict[str, object], known: str | None) -> str | None:
        """Begin a run with these hyperparameters, by dotted key, or continue the one with the id ``known``.

        Returns the id with which `regard resume` continues it, if that is possible.
        """
        raise NotImplementedError

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""
        raise NotImplementedError

    def close(self, failed: bool) -> None:
        """End the run."""
        raise NotImplementedError

    def started(self, start: TrainingStart) -> None:
        """Begin a run; a resumed one continues under the id that is stored in the run folder."""
        self._train = start.experiment.train
        stored = start.run.file(f"{self.package}.id")
        known = stored.read_text("utf-8") if start.step and stored.exists() else None
        try:
            opened = self.open(start, dict(_flat(dump(start.experiment))), known)
        except Exception as error:  # of many kinds: no account, no network, an address that is not supported
            act, fix = ("continue", f"delete {stored} to begin a new one") if known else ("begin", "correct it")
            problem = f"{self.package} cannot {act} a run: {_reason(error)}; {fix}, or train without it"
            raise UserError(problem) from error
        if opened is not None:
            replace_file(stored, opened.encode())
        self._open = True

    def changed(self, experiment: Experiment) -> None:
        """Log by the new numbers."""
        self._train = experiment.train

    def stepped(self, step: TrainingStep) -> None:
        """Log the step if the run logs it."""
        if step.step % self._train.log_every and step.step not in (1, self._train.steps):
            return
        values = {"loss": step.loss, "lr": step.lr, "grad_norm": step.norm, "tokens": step.tokens}
        values |= {"seconds": step.seconds, **(step.terms if len(step.terms) > 1 else {})}
        self._try(lambda: self.log(values, step.step))

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Log the evaluation."""
        self._try(lambda: self.log(measures, step))

    def finished(self, result: TrainingResult) -> None:
        """End the run."""
        self._try(lambda: self.close(failed=False))

    def failed(self, error: BaseException) -> None:
        """End the run, marked as failed."""
        self._try(lambda: self.close(failed=True))

    def _try(self, act: Callable[[], None]) -> None:
        """Act, unless the run is not open; after an error, print one warning and do nothing any more."""
        if not self._open:
            return
        try:
            act()
        except Exception as error:  # of many kinds: no network, a full disk, a server that has gone
            self._open = False
            lost = "training continues without it; metrics.jsonl of the run has everything"
            print(f"warning: {self.package} failed ({_reason(error)}); {lost}", file=sys.stderr, flush=True)


class WandB(Tracker):
    """Weights & Biases. ``options`` go to ``wandb.init``: ``WandB(project="mine", mode="offline")``.

    Files are written into the run folder. WANDB_MODE=offline works without an account; ``wandb sync`` uploads later.
    """

    package = "wandb"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def open(self, start: TrainingStart, config: dict[str, object], known: str | None) -> str | None:
        """Begin a run with the name of the run folder. An offline one cannot be continued: two files need two ids."""
        given = {"project": "regard", "name": start.run.path.name, "dir": str(start.run.path), **self.options}
        resumed = {"id": known, "resume": "allow", "allow_val_change": True} if known else {}
        self.run = self.api.init(config=config, **{**resumed, **given})
        return None if self.run.offline else self.run.id

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self.run.log(values, step=step)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=int(failed))


class MLflow(Tracker):
    """MLflow. Without ``uri``, MLFLOW_TRACKING_URI or MLflow's default decides where to."""

    package = "mlflow"

    def __init__(self, experiment: str = "regard", uri: str | None = None) -> None:
        super().__init__()
        self.experiment, self.uri = experiment, uri

    def open(self, start: TrainingStart, config: dict[str, object], known: str | None) -> str | None:
        """Begin a run with the name of the run folder, or continue it; parameters cannot change."""
        self.client = self.api.MlflowClient(tracking_uri=self.uri)
        if known is not None:
            self.id = known
            self.client.update_run(known, "RUNNING")
            return known
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        self.id = self.client.create_run(number, run_name=start.run.path.name).info.run_id
        for key, value in config.items():
            self.client.log_param(self.id, key, value)
        return self.id

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def _reason(error: Exception) -> str:
    """The first line of an error's message, or its kind."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _flat(table: PlainTable, prefix: str = "") -> list[tuple[str, object]]:
    """The keys of a nested table with dots between them."""
    return [
        pair
        for key, value in table.items()
        for pair in (_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)])
    ]
