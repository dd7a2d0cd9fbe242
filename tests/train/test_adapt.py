"""Runs that train a part of the parameters: small checkpoints, exact resumption, and plain models when loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import KillAt, Killed
from train_kit import experiment, newest, run_whole, same, start, weights

from regard.cli import main
from regard.config import load
from regard.errors import UserError
from regard.generate.load import load_model
from regard.nn.lora import LowRankAdapter, merged
from regard.nn.quantized import QuantizedLinear
from regard.parallel.world import World
from regard.runs import Run
from regard.train import Experiment, train
from regard.train.adapt import FrozenConfig, FullConfig, LoRAConfig, QLoRAConfig
from regard.train.checkpoint import restore
from regard.train.engine import Engine
from regard.train.pretrained import pretrained

KINDS = {
    "lora": LoRAConfig(rank=2, dropout=0.1),
    "qlora": QLoRAConfig(rank=2),
    "frozen": FrozenConfig(trained=("norm", "feedforward")),
}


@pytest.mark.parametrize(
    ("kind", "kill"), [("lora", 2), ("qlora", 5), pytest.param("frozen", 5, marks=pytest.mark.slow)]
)
def test_a_resumed_run_ends_bit_identical(text, tmp_path, kind, kill) -> None:
    base = run_whole(tmp_path, experiment(text, steps=1), "base")
    wanted = replace(experiment(text, adapt=KINDS[kind], save_every=3), init=str(base.path))
    whole = run_whole(tmp_path, wanted)
    run = start(tmp_path, wanted, "broken")
    with pytest.raises(Killed):
        train(wanted, run, [KillAt(kill)])
    train(load(Experiment, run.config), run, resume=True)
    assert same(weights(run), weights(whole))
    assert run.steps() == [0, 6, 8]
    assert same(newest(run).optimizer(), newest(whole).optimizer())


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_are_stored_once_and_stay(text, tmp_path, kind) -> None:
    base = run_whole(tmp_path, experiment(text, steps=1), "base")
    run = run_whole(tmp_path, replace(experiment(text, adapt=KINDS[kind]), init=str(base.path)))
    first, last = run.checkpoint(0).model(), newest(run).model()
    assert first.keys() == last.keys()
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    own = newest(run)
    assert own.base is not None
    assert own.base.step == 0
    stored = set(replace(own, base=None).shapes())
    assert stored == changed
    assert changed
    wanted = ("lora_",) if "lora" in kind else ("norm", "feedforward")
    assert all(any(part in name for part in wanted) for name in changed)


@pytest.mark.parametrize("config", [LoRAConfig(rank=2), QLoRAConfig(rank=2)], ids=["lora", "qlora"])
def test_a_loaded_model_is_plain_and_computes_the_same(text, tmp_path, config) -> None:
    wanted = experiment(text, adapt=config, model={"dropout": 0.0})
    run = run_whole(tmp_path, wanted)
    resolved = load(Experiment, run.config)
    engine = Engine(resolved, resolved.data.build(resolved.model.context), World())
    restore(engine, newest(run))
    engine.model.eval()
    loaded = load_model(run).model
    assert not any(isinstance(module, LowRankAdapter | QuantizedLinear) for module in loaded.modules())
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens), engine.model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [FullConfig(), LoRAConfig(rank=2), QLoRAConfig(rank=2)], ids=lambda one: one.kind)
def test_another_run_starts_from_the_merged_weights_read_one_by_one(text, tmp_path, config) -> None:
    run = run_whole(tmp_path, experiment(text, adapt=config))
    given, whole = pretrained(str(run.path)).weights, merged(newest(run).model())
    assert list(given) == list(whole)
    assert all(torch.equal(given[name], x) for name, x in whole.items())
    assert len(given) == len(whole)
    assert "lora_a" not in given
    with pytest.raises(KeyError):
        given["lora_a"]


def test_a_missing_base_is_named(text, tmp_path) -> None:
    run = run_whole(tmp_path, experiment(text, adapt=LoRAConfig(rank=2)))
    for file in (run.path / "checkpoints" / "step-000000").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="base, the checkpoint of step 0"):
        run.checkpoint(8)
    assert run.latest() is None


def _command(capsys: Any, *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_commands_work_on_an_adapted_run(text, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    gpt2 = {"bias": True, "qk_norm": False, "norm": "layer", "position": "learned", "feedforward": "gelu"}
    tuned = run_whole(tmp_path / "runs", experiment(text, gpt2, adapt=LoRAConfig(rank=2)), "tuned")
    assert _command(capsys, "generate", "tuned", "--prompt", "the", "--tokens", "4")
    assert _command(capsys, "evaluate", "tuned", "--device", "cpu")["loss"] > 0
    assert _command(capsys, "export", "tuned", "out", "--device", "cpu")["config"]["model_type"] == "gpt2"
    imported = Path(_command(capsys, "import", "out", "again")["run"])
    first, second = (load_model(run).model for run in (tuned, Run.open(imported)))
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(first(tokens), second(tokens), rtol=1e-4, atol=1e-5)


def test_the_doctor_accepts_what_the_config_freezes(text, tmp_path) -> None:
    from regard.doctor import Doctor

    wanted = experiment(text, adapt=LoRAConfig(rank=2), steps=4)
    run = start(tmp_path, wanted)
    train(wanted, run, [Doctor()])
    assert not [finding for finding in run.findings() if finding["kind"] == "unoptimized_parameters"], run.findings()
