"""Checks of the doctor on time and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from check_kit import a_run, kinds

from regard.config import override
from regard.data import TextConfig
from regard.doctor.checks.memory import MemoryFull
from regard.doctor.checks.slow_rank import SlowRank
from regard.doctor.checks.starvation import Starvation
from regard.doctor.context import Resources, TrainingRun
from regard.models import GPTConfig
from regard.parallel.waiting import slowest
from regard.parallel.world import World
from regard.train import Experiment, TrainConfig, TrainingStep
from regard.train.engine import Engine


def resources(step: float = 0.0, making: float = 0.0, used: int = 0, limit: int | None = None) -> Resources:
    return Resources(step, making, [], used, 200, limit)


def test_waiting_is_a_share_of_a_step() -> None:
    assert list(Starvation(a_run()).on_resources(resources(0.1, 0.001))) == []
    found = Starvation(a_run(accumulate=2)).on_resources(resources(0.1, 0.03))
    assert kinds(found) == [("starvation", "data.batch")]


def test_memory_gets_a_batch_that_fits() -> None:
    run = a_run()
    (finding,) = MemoryFull(run).on_resources(resources(used=960, limit=1000))
    assert finding.change == f"--data.batch {run.experiment.data.batch // 2} --train.accumulate 2"
    assert list(MemoryFull(run).on_resources(resources(used=800, limit=1000))) == []
    assert list(MemoryFull(run).on_resources(resources(used=800, limit=None))) == []


def test_the_batch_that_fits_trains_on_the_same_tokens(tmp_path: Path) -> None:
    """The advice for full memory changes the micro-batches and not the updates."""
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 20, encoding="utf-8")
    model = GPTConfig(context=8, layers=1, heads=2, width=8, zero_init=False)
    train = TrainConfig(steps=5, device="cpu", evaluate_every=None)
    experiment = Experiment(model, TextConfig(path=str(path), batch=8), train=train)
    (finding,) = MemoryFull(TrainingRun(experiment)).on_resources(Resources(1.0, 0.0, [], 95, 10, 100))
    smaller = override(experiment, finding.change.split())
    assert smaller.data.batch * smaller.train.accumulate == 8 > smaller.data.batch
    weights = []
    for each in (experiment, smaller):
        data = each.data.build(8)
        engine = Engine(replace(each, model=each.model_for(data)), data, World())
        engine.model.double()
        for _ in range(5):
            engine.update()
        weights.append(engine.model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-10, msg=name)


def test_a_rank_that_the_others_wait_for_is_named() -> None:
    def found(*steps: tuple[float, ...]) -> list[tuple[str, str]]:
        check = SlowRank(a_run())
        for number, seconds in enumerate(steps, 1):
            assert not check.on_step(TrainingStep(number, 1.0, 1.0, 1.0, 0, 0.0, rank_seconds=seconds))
        records = [{"step": number, "loss": 1.0} | slowest([seconds]) for number, seconds in enumerate(steps, 1)]
        assert kinds(check.on_records(records)) == kinds(check.on_resources(resources()))
        return kinds(check.on_resources(resources()))

    assert found(*[(1.0, 1.5, 1.1)] * 20) == [("slow_rank", "rank 1")]
    assert found(*[(1.5, 1.0)] * 20) == [("slow_rank", "rank 0")]
    assert found(*[()] * 20) == []  # one process
    assert found(*[(1.0, 1.2, 1.1)] * 20) == []  # not clearly
    assert found(*[(1.0, 1.5, 1.1), (1.5, 1.0, 1.1)] * 10) == []  # not steadily
    assert found(*[(1.0, 1.5)] * 3) == []
