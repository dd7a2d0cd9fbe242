"""Weights & Biases and MLflow in their offline modes, and a clear word where one is not installed."""

import subprocess
import sys

import pytest
from report_kit import experiment, trained

from regard.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages themselves

NAMES = ("loss", "lr", "grad_norm", "validation_loss")


def logged(run, name):
    return [(m["step"], m[name]) for m in run.metrics() if name in m]


def test_mlflow_gets_the_config_the_curves_and_the_end(tmp_path, text):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from regard.train.trackers import MLflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = trained(tmp_path, experiment(text), [MLflow("mine", uri)])
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (found.info.run_name, found.info.status) == (run.path.name, "FINISHED")
    assert found.data.params["model.kind"] == "gpt"
    assert found.data.params["train.steps"] == str(run.config["train"]["steps"])
    for name in NAMES:
        curve = [
            (point.step, pytest.approx(point.value)) for point in client.get_metric_history(found.info.run_id, name)
        ]
        assert curve == logged(run, name)


def test_mlflow_says_in_one_sentence_why_it_cannot_begin(tmp_path, text):
    pytest.importorskip("mlflow")
    from regard.train.trackers import MLflow

    with pytest.raises(UserError, match=r"mlflow cannot begin a run: .*nowhere"):
        trained(tmp_path, experiment(text), [MLflow(uri="nowhere://x")])


def test_weights_and_biases_offline(tmp_path, text):
    pytest.importorskip("wandb")
    from regard.train.trackers import WandB

    curves, configs = [], []

    class Recorded(WandB):
        def log(self, values, step):
            curves.extend((name, step, value) for name, value in values.items())
            super().log(values, step)

        def close(self, failed):
            configs.append(self.run.config["model.kind"])
            super().close(failed)

    run = trained(tmp_path, experiment(text), [Recorded(mode="offline")])
    assert len(list(run.path.glob("wandb/offline-run-*/run-*.wandb"))) == 1
    assert configs == ["gpt"]
    for name in NAMES:
        assert [(step, pytest.approx(value)) for key, step, value in curves if key == name] == logged(run, name)


@pytest.mark.parametrize(("package", "observer"), [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_without_the_package_the_way_to_it_is_named(package, observer):
    code = f"""
import sys
sys.modules[{package!r}] = None
import regard
try:
    regard.{observer}()
except regard.UserError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{package} is not installed; install it: pip install 'regard[{package}]'\n"


def test_only_the_chosen_trackers_observe(monkeypatch):
    from regard.commands.train import TrainOptions, observers
    from regard.train import trackers

    for name in ("WandB", "MLflow"):
        monkeypatch.setattr(trackers, name, lambda name=name: name)
    plain = observers(TrainOptions(), resume=False)
    assert not {"WandB", "MLflow"} & {one for one in plain if isinstance(one, str)}
    assert observers(TrainOptions(wandb=True), resume=False)[-1] == "WandB"
    assert observers(TrainOptions(mlflow=True), resume=False)[-1] == "MLflow"
