"""TensorBoard events, read back by TensorBoard's own reader; and a clear word where it is not installed."""

import pytest
from report_kit import experiment, trained

from regard.report import ModelMeasurements
from warm_process import python


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that TensorBoard brings
def test_events_say_what_the_run_says(text, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from regard.train.tensorboard import TensorBoard

    run = trained(tmp_path, experiment(text), [ModelMeasurements(), TensorBoard()])
    events = EventAccumulator(str(run.file("tensorboard")))
    events.Reload()

    def curve(name):
        return [(event.step, pytest.approx(event.value, rel=1e-5)) for event in events.Scalars(name)]

    metrics = run.metrics()
    assert curve("loss/training") == [(m["step"], m["loss"]) for m in metrics if "loss" in m]
    assert curve("loss/validation") == [(m["step"], m["validation_loss"]) for m in metrics if "validation_loss" in m]
    assert curve("rate") == [(m["step"], m["lr"]) for m in metrics if "lr" in m]
    assert curve("gradient/norm") == [(m["step"], m["grad_norm"]) for m in metrics if "grad_norm" in m]
    assert curve("gradient by layer/blocks.1") == [
        (m["step"], m["gradients"]["blocks.1"]) for m in metrics if "gradients" in m
    ]
    name = "blocks.0.attention.mechanism"
    assert curve(f"spread/{name}/1") == [(m["step"], m["spread"][name][0]) for m in metrics if "spread" in m]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("sample/text_summary")]
    assert [s["step"] for s in run.samples()] == [event.step for event in events.Tensors("sample/text_summary")]
    assert texts[0].replace("\n    ", "\n").endswith(run.samples()[0]["text"])


def test_without_the_package_the_way_to_it_is_named(tmp_path):
    code = """
import sys
sys.modules["tensorboard"] = None
from regard.errors import UserError
from regard.train.tensorboard import TensorBoard
try:
    TensorBoard()
except UserError as problem:
    print(problem)
"""
    done = python(code, tmp_path)
    assert "pip install 'regard[tensorboard]'" in done.stdout
