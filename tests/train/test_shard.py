"""Two gloo ranks with FSDP2 train as one process does."""

import shutil
from dataclasses import replace

import pytest
import torch
from rank_kit import start_ranks
from train_kit import MODEL, TRAIN, RowsConfig, run_whole, same, start, weights

from regard.errors import UserError
from regard.parallel.world import from_environment
from regard.runs import Run
from regard.tasks import LanguageConfig
from regard.train import Experiment, MuonConfig, OptimizerConfig


def _experiment(batch: int, optimizer: OptimizerConfig, hard: bool) -> Experiment:
    train = replace(TRAIN, optimizer=optimizer, accumulate=2, checkpointing=hard)
    task = LanguageConfig(logits=13 * 5 if hard else 2**20)
    return Experiment(replace(MODEL, vocabulary=13, dropout=0.0), RowsConfig(batch=batch), task, train)


def _ranks(run: Run, *arguments: str) -> None:
    for child in start_ranks(2, "ranked_run.py", str(run.path), *arguments):
        _, errors = child.communicate(timeout=600)
        assert child.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "hard"), [(TRAIN.optimizer, False), (MuonConfig(), True)], ids=["adamw", "muon recomputed"]
)
def test_two_ranks_equal_one_process_and_resume(tmp_path, optimizer, hard):
    whole = run_whole(tmp_path, _experiment(8, optimizer, hard), "one")
    two = start(tmp_path, _experiment(4, optimizer, hard), "two")
    _ranks(two)
    one, both = weights(whole), weights(two)
    assert one.keys() == both.keys()
    for name in one:
        torch.testing.assert_close(both[name], one[name], rtol=0, atol=2e-5, msg=name)
    for a, b in zip(whole.metrics(), two.metrics(), strict=True):
        assert a["step"] == b["step"]
        for key in ("loss", "validation_loss", "grad_norm", "tokens"):
            assert a.get(key) == pytest.approx(b.get(key), abs=1e-4)

    shutil.rmtree(two.path / "checkpoints" / "step-000008")
    _ranks(two, "--resume")
    assert same(weights(two), both)


def test_the_launcher_is_asked_for_numbers(monkeypatch):
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UserError, match="RANK"):
        from_environment()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="RANK is 2"):
        from_environment()
    monkeypatch.setenv("RANK", "1")
    assert from_environment()[:3] == (1, 2, 1)
