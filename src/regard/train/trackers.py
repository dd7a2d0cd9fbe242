"""Weights & Biases and MLflow as observers: the config, the logged steps, the evaluations and the result of a run."""

import importlib
from typing import Any

from regard.config import dump
from regard.errors import UserError
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep


class Tracker(Observer):
    """Base class: decides what is logged. A subclass says where to."""

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

    def open(self, start: TrainingStart, config: dict[str, object]) -> None:
        """Begin a run with these hyperparameters, by dotted key."""
        raise NotImplementedError

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""
        raise NotImplementedError

    def close(self, failed: bool) -> None:
        """End the run."""
        raise NotImplementedError

    def started(self, start: TrainingStart) -> None:
        """Begin a run."""
        self._train = start.experiment.train
        try:
            self.open(start, dict(_flat(dump(start.experiment))))
        except Exception as error:  # of many kinds: no account, no network, an address that is not supported
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"{self.package} cannot begin a run: {reason}; correct it, or train without it") from error
        self._open = True

    def stepped(self, step: TrainingStep) -> None:
        """Log the step if the run logs it."""
        if step.step % self._train.log_every and step.step not in (1, self._train.steps):
            return
        values = {"loss": step.loss, "lr": step.lr, "grad_norm": step.norm, "tokens": step.tokens}
        self.log({**values, "seconds": step.seconds, **(step.terms if len(step.terms) > 1 else {})}, step.step)

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Log the evaluation."""
        self.log(measures, step)

    def finished(self, result: TrainingResult) -> None:
        """End the run."""
        self.close(failed=False)

    def failed(self, error: BaseException) -> None:
        """End the run, marked as failed."""
        if self._open:
            self.close(failed=True)


class WandB(Tracker):
    """Weights & Biases. ``options`` go to ``wandb.init``: ``WandB(project="mine", mode="offline")``.

    Files are written into the run folder. WANDB_MODE=offline works without an account; ``wandb sync`` uploads later.
    """

    package = "wandb"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def open(self, start: TrainingStart, config: dict[str, object]) -> None:
        """Begin a run with the name of the run folder."""
        given = {"project": "regard", "name": start.run.path.name, "dir": str(start.run.path), **self.options}
        self.run = self.api.init(config=config, **given)

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

    def open(self, start: TrainingStart, config: dict[str, object]) -> None:
        """Begin a run with the name of the run folder."""
        self.client = self.api.MlflowClient(tracking_uri=self.uri)
        known = self.client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known else self.client.create_experiment(self.experiment)
        self.id = self.client.create_run(number, run_name=start.run.path.name).info.run_id
        for key, value in config.items():
            self.client.log_param(self.id, key, value)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """The keys of a nested table with dots between them."""
    return [
        pair
        for key, value in table.items()
        for pair in (_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)])
    ]
