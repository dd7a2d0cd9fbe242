"""Weights & Biases and MLflow in their offline modes, and a clear word where one is not installed."""

import pytest
from report_kit import experiment, trained

from regard.commands.resume import ResumeOptions
from regard.commands.train import TrainOptions, observers
from regard.errors import UserError
from regard.train import train
from regard.train.trackers import Tracker
from warm_process import python

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
def test_without_the_package_the_way_to_it_is_named(package, observer, tmp_path):
    code = f"""
import sys
sys.modules[{package!r}] = None
import regard
try:
    regard.{observer}()
except regard.UserError as problem:
    print(problem)
"""
    done = python(code, tmp_path)
    assert done.stdout == f"{package} is not installed; install it: pip install 'regard[{package}]'\n"


@pytest.mark.parametrize("options", [TrainOptions, ResumeOptions])
def test_only_the_chosen_trackers_observe(monkeypatch, options):
    from regard.train import trackers

    for name in ("WandB", "MLflow"):
        monkeypatch.setattr(trackers, name, lambda name=name: name)
    plain = observers(options(), resume=False)
    assert not {"WandB", "MLflow"} & {one for one in plain if isinstance(one, str)}
    assert observers(options(wandb=True), resume=False)[-1] == "WandB"
    assert observers(options(mlflow=True), resume=False)[-1] == "MLflow"


class Failing(Tracker):
    """A tracker of which one method fails from its second call on, as a server that has gone."""

    package = "json"  # any that is installed

    def __init__(self, fault):
        super().__init__()
        self.fault, self.calls, self.known = fault, [], []

    def open(self, start, config, known):
        self.known.append(known)
        return "id-1"

    def log(self, values, step):
        self.calls.append("log")
        if self.fault == "log" and self.calls.count("log") > 1:
            raise ConnectionError("no route to the server\nand more lines")

    def close(self, failed):
        self.calls.append("failed" if failed else "finished")
        if self.fault == "close":
            raise ConnectionError


@pytest.mark.parametrize(
    ("fault", "reason", "calls"),
    [("log", "no route to the server", ["log"] * 2), ("close", "ConnectionError", ["log"] * 10 + ["finished"])],
)
def test_a_tracker_that_fails_is_warned_about_once_and_training_goes_on(tmp_path, text, capsys, fault, reason, calls):
    tracker = Failing(fault)
    run = trained(tmp_path, experiment(text), [tracker])
    assert run.steps()[-1] == 8
    assert tracker.calls == calls
    assert capsys.readouterr().err.splitlines() == [
        f"warning: json failed ({reason}); training continues without it; metrics.jsonl of the run has everything"
    ]


def test_a_tracker_that_fails_does_not_hide_why_training_ended(tmp_path, text):
    class Stops(Failing):
        def log(self, values, step):
            raise KeyboardInterrupt

    tracker = Stops("close")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, experiment(text), [tracker])
    assert tracker.calls == ["failed"]


def test_a_resumed_run_continues_under_its_id(tmp_path, text):
    tracker, longer = Failing(""), experiment(text, steps=10)
    run = trained(tmp_path, experiment(text), [tracker])
    train(longer, run, [tracker], resume=True)
    assert tracker.known == [None, "id-1"]
    other = trained(tmp_path, experiment(text), [tracker], name="other")
    assert tracker.known[-1] is None
    assert other.file("json.id").read_text() == "id-1"


def test_mlflow_continues_a_resumed_run(tmp_path, text):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from regard.train.trackers import MLflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = trained(tmp_path, experiment(text), [MLflow("mine", uri)])
    train(experiment(text, steps=10), run, [MLflow("mine", uri)], resume=True)
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    curve = [(point.step, pytest.approx(point.value)) for point in client.get_metric_history(found.info.run_id, "loss")]
    assert curve == logged(run, "loss")
    with pytest.raises(UserError, match=r"mlflow cannot continue a run: .*; delete .*mlflow.id to begin a new one"):
        train(experiment(text, steps=12), run, [MLflow("mine", f"sqlite:///{tmp_path}/other.db")], resume=True)
