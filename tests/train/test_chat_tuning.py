"""Supervised fine-tuning on conversations, then preferences: from a run to a run, with adapters, resumed exactly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_resume import KillAt, Killed
from train_kit import newest, same, start, weights

from regard.cli import main
from regard.config import load
from regard.data import BytesConfig, ChatConfig, PreferenceConfig, TextConfig
from regard.models import GPTConfig
from regard.runs import Run
from regard.tasks import PreferenceTaskConfig
from regard.train import AdamWConfig, Experiment, TrainConfig, train
from regard.train.adapt import LoRAConfig

TRAIN = TrainConfig(
    steps=30, optimizer=AdamWConfig(lr=1e-2), log_every=1, evaluate_every=None, save_every=15, device="cpu"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    (folder / "text.txt").write_text("the cat sat on the mat. " * 40)
    base = Experiment(
        GPTConfig(context=96, layers=1, heads=2, width=32),
        TextConfig(path=str(folder / "text.txt"), tokenizer=BytesConfig(), batch=2),
        train=replace(TRAIN, steps=2),
    )
    train(base, start(folder / "runs", base, "base"))
    chats = [{"prompt": f"Say {word}", "completion": word} for word in ("yes", "no") * 8]
    pairs = [{"prompt": f"Say {word}", "chosen": word, "rejected": "maybe"} for word in ("yes", "no") * 8]
    (folder / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in chats))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    return folder


def tuned(folder: Path, init: str = "base", **training: Any) -> Experiment:
    data = ChatConfig(path=str(folder / "chats.jsonl"), tokens=96, batch=4, validation=0.0)
    train = replace(TRAIN, **{"adapt": LoRAConfig(rank=8), **training})
    return Experiment(init=str(folder / "runs" / init), data=data, train=train)


def preferring(folder: Path, init: str, **training: Any) -> Experiment:
    data = PreferenceConfig(path=str(folder / "pairs.jsonl"), validation=0.5)
    task = PreferenceTaskConfig(beta=0.5)
    return replace(tuned(folder, init, **{"steps": 6, "save_every": 2, **training}), data=data, task=task)


def test_from_text_to_chat_to_preferences(folder: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    wanted = tuned(folder)
    run = start(folder / "runs", wanted, "chat")
    train(wanted, run)
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    assert losses[-1] < losses[0] - 0.3
    assert Run.open(run.path).config["data"]["stops"] == ["<|im_end|>"]
    assert main(["chat", "chat", "--message", "Say yes", "--tokens", "3", "--device", "cpu", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out)["answer"], str)
    wanted = preferring(folder, "chat")
    run = start(folder / "runs", wanted, "dpo")
    train(wanted, run)
    records = run.metrics()
    first = next(record["loss"] for record in records if "loss" in record)
    assert first == pytest.approx(math.log(2), abs=1e-4)  # the policy is the reference
    assert records[-1]["validation_margin"] > 0
    assert records[-1]["validation_accuracy"] == 1.0
    assert main(["chat", "dpo", "--message", "Say yes", "--tokens", "3", "--device", "cpu", "--json"]) == 0


@pytest.mark.parametrize("adapt", [pytest.param({}, marks=pytest.mark.slow), {"adapt": "full"}], ids=["lora", "full"])
def test_preference_tuning_is_resumed_exactly(folder: Path, tmp_path: Path, adapt: dict[str, Any]) -> None:
    """The reference is that of the start, not of the checkpoint."""
    wanted = preferring(folder, "base", **adapt)
    whole, run = start(tmp_path, wanted, "whole"), start(tmp_path, wanted, "broken")
    train(wanted, whole)
    with pytest.raises(Killed):
        train(wanted, run, [KillAt(3)])
    train(load(Experiment, run.config), run, resume=True)
    assert same(weights(run), weights(whole))
    assert same(newest(run).optimizer(), newest(whole).optimizer())
