"""Settings outside their usual range, and what a resumed run has of its checkpoint."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from check_kit import kinds
from run_faults.kit import gpt, training

from regard import recipes
from regard.commands.train import read_experiment
from regard.config import to_toml
from regard.doctor import Doctor, Finding
from regard.doctor.checks.settings import UnusualSetting
from regard.doctor.checks.task_loss import probabilities
from regard.doctor.context import TrainingRun
from regard.models.gpt import GPT
from regard.runs import Run
from regard.train import AdamWConfig, Experiment, MuonConfig, TrainConfig, checkpoint, train


def found(model: Any = None, **options: Any) -> list[Finding]:
    return list(UnusualSetting(TrainingRun(Experiment(model or gpt(), train=TrainConfig(**options)))).on_start())


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("model.dropout", {"model": gpt(dropout=0.9)}),
        ("model.cap", {"model": gpt(cap=1.5)}),
        ("train.clip", {"clip": 1e-6}),
        ("train.optimizer.eps", {"optimizer": AdamWConfig(eps=0.3)}),
        ("train.optimizer.betas", {"optimizer": AdamWConfig(betas=(0.999, 0.9))}),
        ("train.optimizer.betas", {"optimizer": AdamWConfig(betas=(0.99, 0.999))}),
        ("train.optimizer.rest_eps", {"optimizer": MuonConfig(rest_eps=0.3)}),
    ],
)
def test_a_setting_outside_its_range_is_named(where: str, options: dict[str, Any]) -> None:
    assert kinds(found(**options)) == [("unusual_setting", where)]
    assert "no setting fixes it" not in found(**options)[0].change


@pytest.mark.parametrize(
    "options",
    [
        {"model": gpt(dropout=0.5)},
        {"model": gpt(cap=15.0)},
        {"clip": None},
        {"clip": 0.1},
        {"optimizer": AdamWConfig(lr=3e-2, weight_decay=1.0, eps=1e-3)},
        {"optimizer": AdamWConfig(betas=(0.98, 0.98))},
        {"optimizer": AdamWConfig(betas=(0.0, 0.999), eps=0.0)},
    ],
)
def test_a_setting_that_is_used_is_not_named(options: dict[str, Any]) -> None:
    assert not found(**options)


def test_no_recipe_has_an_unusual_setting() -> None:
    for name in recipes.names():
        if recipes.get(name).init is None:  # others start from published models
            assert not list(UnusualSetting(TrainingRun(read_experiment(name, [], 1))).on_start()), name


def test_probabilities_are_told_from_logits() -> None:
    logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(1))
    assert probabilities(logits.softmax(-1))
    assert not any(
        map(probabilities, (logits, logits.abs(), logits.log_softmax(-1), logits.sigmoid(), logits[..., :1]))
    )


def test_a_head_that_returns_probabilities_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    head = GPT.head
    monkeypatch.setattr(GPT, "head", lambda model, x: head(model, x).softmax(-1))
    doctor = Doctor(out=io.StringIO())
    experiment = training(tmp_path, train={"steps": 3})
    train(experiment, Run.create(tmp_path, None, to_toml(experiment), {}), [doctor])
    assert kinds(doctor.findings.values()) == [("task_loss", "the head")]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_resumed_run_has_the_weights_of_its_checkpoint(
    lenient: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    experiment = training(tmp_path, train={"steps": 6, "save_every": 3})
    run = Run.create(tmp_path, None, to_toml(experiment), {})
    train(experiment, run)
    restore = checkpoint.restore_model

    def partial(model: Any, tensors: dict[str, torch.Tensor]) -> None:
        own = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("blocks.1.")}
        restore(model, {**tensors, **own} if lenient else tensors)

    monkeypatch.setattr(checkpoint, "restore_model", partial)
    doctor = Doctor(out=io.StringIO())
    longer = replace(experiment, train=replace(experiment.train, steps=9))
    train(longer, Run.open(run.path), [doctor], resume=True)
    assert doctor.active
    assert [(one.kind, one.where[:8]) for one in doctor.findings.values()] == [("model_differs", "blocks.1")] * lenient
