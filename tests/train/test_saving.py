"""Saving from a thread, and by two real ranks: the same bytes as at once, and one process reads and continues them."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_kit import start_ranks
from safetensors.torch import load_file
from train_kit import RowsConfig, experiment, newest, run_whole, same, start, weights

from regard.cli import main
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.feedforward import SwiGLUConfig
from regard.parallel.world import World
from regard.runs import Run, checkpoint
from regard.train import Experiment, Observer, train
from regard.train.adapt import LoRAConfig
from regard.train.prepare import prepare
from regard.train.saving import host_copies, tied_names


def digests(run: Run, step: int) -> dict[str, str]:
    """The SHA-256 of the tensor files of a checkpoint."""
    manifest = json.loads((run.path / "checkpoints" / f"step-{step:06d}" / "MANIFEST.json").read_text())
    return {name: entry["sha256"] for name, entry in manifest["files"].items() if name != "state.json"}


class Saved(Observer):
    """The steps whose checkpoints the observers were told of; and a look at the training while one is written."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.trained = threading.Event()

    def stepped(self, step: Any) -> None:
        if step.step == 6:
            self.trained.set()

    def saved(self, step: int, path: Path) -> None:
        assert checkpoint.damage(path / "checkpoints" / f"step-{step:06d}", step, thorough=True) is None
        self.steps.append(step)


def test_a_thread_saves_the_same_bytes_while_training_goes_on(text, tmp_path, monkeypatch):
    wanted = experiment(text, {"tied": True}, save_every=2, keep=10)
    at_once = run_whole(tmp_path, wanted, "at-once")
    saved, write, inside = Saved(), checkpoint.write, []

    def slow(parent: Path, step: int, *rest: Any) -> Path:
        inside.append(step)
        assert len(inside) == 1, "two checkpoints are being written at the same time"
        if step == 4:  # it is written only after two further steps
            assert saved.trained.wait(60)
        try:
            return write(parent, step, *rest)
        finally:
            inside.remove(step)

    monkeypatch.setattr(checkpoint, "write", slow)
    later = start(tmp_path, replace(wanted, train=replace(wanted.train, save_async=True)), "later")
    train(replace(wanted, train=replace(wanted.train, save_async=True)), later, [saved])
    assert saved.steps == later.steps() == at_once.steps() == [2, 4, 6, 8]
    for step in later.steps():
        assert digests(later, step) == digests(at_once, step)
    tied = newest(later).model()
    assert tied["unembed.weight"] is tied["embed.tokens.weight" if "embed.tokens.weight" in tied else "embed.weight"]


@pytest.mark.parametrize("step", [4, 8])
def test_an_error_of_the_thread_ends_the_run(text, tmp_path, monkeypatch, step):
    """That of step 4 at the next save, that of the last step at the end."""
    write, saved = checkpoint.write, Saved()

    def full(parent: Path, at: int, *rest: Any) -> Path:
        if at == step:
            raise OSError(28, "No space left on device")
        return write(parent, at, *rest)

    monkeypatch.setattr(checkpoint, "write", full)
    wanted = experiment(text, save_async=True)
    run = start(tmp_path, wanted)
    with pytest.raises(UserError, match=f"cannot write the checkpoint of step {step} .*the disk is full"):
        train(wanted, run, [saved])
    assert run.steps() == saved.steps == [4] * (step == 8)


def test_copies_keep_ties_and_own_their_memory():
    base = torch.arange(6.0).view(2, 3)
    given = {"a": base, "again": base.detach(), "other": base.T, "none": torch.zeros(0), "nothing": torch.zeros(0)}
    copies = host_copies(given)
    assert same(copies, given)
    assert copies["a"] is copies["again"]
    base.zero_()
    assert copies["a"].sum() == copies["other"].sum() == 15
    model = GPTConfig(context=8, layers=1, heads=1, width=8, vocabulary=5, tied=True).build()
    shared = tied_names(model, model.state_dict())
    assert list(shared) == ["unembed.weight"]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that two ranks have trained: at once, with a thread, and adapters of a frozen model."""
    folder = tmp_path_factory.mktemp("room")
    runs = [start(folder, ranked(name), name) for name in ("at-once", "thread", "lora")]
    for rank in start_ranks(2, "ranked_run.py", *(str(run.path) for run in runs)):
        _, errors = rank.communicate(timeout=600)
        assert rank.returncode == 0, errors
    return folder


def ranked(name: str) -> Experiment:
    """The experiment of a run of two ranks."""
    published = {"qk_norm": False, "feedforward": SwiGLUConfig()}  # as a Llama is
    model = {"dropout": 0.0, "tied": True, "vocabulary": 13, **published}
    base = experiment(Path("unused"), model, keep=10, lanes=2)
    options = {"save_async": name != "at-once"} | ({"adapt": LoRAConfig(rank=2)} if name == "lora" else {})
    return replace(base, data=RowsConfig(batch=4), train=replace(base.train, **options))


@pytest.mark.slow
def test_two_ranks_save_the_same_bytes_from_a_thread(room: Path):
    at_once, thread = (Run.open(room / name) for name in ("at-once", "thread"))
    assert at_once.steps() == thread.steps() == [4, 8]
    for step in (4, 8):
        names = {f"{kind}-0000{rank}-of-00002.safetensors" for kind in ("model", "optimizer") for rank in (1, 2)}
        assert digests(at_once, step).keys() == names
        assert digests(at_once, step) == digests(thread, step)


@pytest.mark.slow
def test_one_process_goes_on_from_two_ranks(room: Path, tmp_path: Path):
    for name in ("at-once", "lora"):
        shutil.copytree(room / name, tmp_path / name)
        run, two = Run.open(tmp_path / name), weights(Run.open(room / name))
        shutil.rmtree(run.path / "checkpoints" / "step-000008")
        wanted = run.load(Experiment)
        engine = prepare(wanted, run, World(), 0.0, resume=True)
        stored = run.checkpoint(4)
        assert stored.split is not None
        assert same(dict(engine.model.state_dict()), stored.model())
        assert same(engine.optimizer.state(), stored.optimizer())
        train(wanted, run, resume=True)
        for key, tensor in weights(run).items():
            torch.testing.assert_close(tensor, two[key], rtol=0, atol=2e-5, msg=key)
        assert newest(run).split is None  # one process writes the first schema
    base = newest(Run.open(room / "lora")).base
    assert base is not None
    assert base.step == 0
    assert set(digests(Run.open(room / "lora"), 8)) == set(digests(Run.open(room / "lora"), 0))


@pytest.mark.slow
def test_a_run_of_two_ranks_is_exported_as_one_file(room: Path, tmp_path: Path):
    assert main(["export", str(room / "at-once"), str(tmp_path / "out")]) == 0
    found, own = load_file(tmp_path / "out" / "model.safetensors"), weights(Run.open(room / "at-once"))
    assert torch.equal(found["model.embed_tokens.weight"], own["unembed.weight"])
    assert sum(tensor.numel() for tensor in found.values()) == sum(
        {id(one): one.numel() for one in own.values()}.values()
    )


@pytest.mark.slow
def test_info_names_damage_and_two_ranks_agree_on_it(room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(room / "at-once", tmp_path / "run")
    assert main(["info", str(tmp_path / "run")]) == 0
    assert "damaged" not in capsys.readouterr().out
    file = tmp_path / "run" / "checkpoints" / "step-000008" / "optimizer-00002-of-00002.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["info", str(tmp_path / "run")]) == 0
    assert f"step-000008 is damaged: {file.name} does not have the SHA-256" in capsys.readouterr().out
    ranks = start_ranks(2, "ranked_run.py", str(tmp_path / "run"), "--resume")
    for number, rank in enumerate(ranks):
        _, errors = rank.communicate(timeout=600)
        assert rank.returncode == 0, errors
        if number == 0:
            assert f"{file.name} does not have the SHA-256 in its manifest; taking step 4 instead" in errors
    assert same(weights(Run.open(tmp_path / "run")), weights(Run.open(room / "at-once")))
