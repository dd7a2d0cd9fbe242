"""`regard compress` writes runs that every other command opens, and measures them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.cli import main

TEXT = "the quick brown fox jumps over the lazy dog, and the dog looks up. who goes there? said the fox\n"
SIZES = "--model.layers 3 --model.heads 2 --model.width 32 --model.context 16 --data.batch 8 --train.steps 40"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/tiny`."""
    folder = tmp_path_factory.mktemp("compress")
    (folder / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        words = (
            "--model.ngrams 1 --model.buckets 32768 --model.cap none --model.qk_norm false --model.feedforward swiglu"
        )
        assert main(["train", "--name", "tiny", "--data.path", "text.txt", *SIZES.split(), *words.split()]) == 0
    return folder


@pytest.fixture
def call(room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(room)
    monkeypatch.setenv("REGARD_CACHE", str(room / "cache"))

    def run(*words: str) -> tuple[int, Any, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, json.loads(out) if code == 0 and "--json" in words else out, err

    return run


@pytest.mark.parametrize(("way", "most", "smaller"), [("int8", 0.01, 0.45), ("int4", 0.3, 0.4)])
def test_quantized_runs_are_opened_like_any_other(call: Any, way: str, most: float, smaller: float) -> None:
    code, record, _ = call("compress", "tiny", "--to", way, "--name", way, "--tokens", "256", "--json")
    assert code == 0
    before, after = record["table"]
    assert abs(after["loss"] - before["loss"]) < most
    assert after["bytes"] < smaller * before["bytes"]
    _, found, _ = call("evaluate", way, "--json")
    assert abs(found["loss"] - call("evaluate", "tiny", "--json")[1]["loss"]) < most
    prompt = ("--prompt", "the quick", "--tokens", "8", "--json")
    assert call("generate", way, *prompt)[0] == 0
    assert call("info", way)[0] == 0
    assert call("look", way, "--text", "the quick brown", "--out", f"{way}.html")[0] == 0
    assert call("export", way, f"{way}-hub")[0] == 0
    code, _, error = call("resume", way, "--steps", "80")
    assert code == 2
    assert "quantized" in error
    assert "already" in call("compress", way)[2]


def test_pruned_runs_have_a_smaller_config(call: Any) -> None:
    code, record, _ = call("compress", "tiny", "--to", "prune=0.3", "--name", "pruned", "--tokens", "256", "--json")
    assert code == 0
    before, after = record["table"]
    assert after["bytes"] < before["bytes"]
    assert record["notes"]
    found = call("evaluate", "pruned", "--json")[1]["loss"]
    assert found < 3.4  # below ln 30, the loss of a uniform distribution
    assert call("generate", "pruned", "--prompt", "the", "--tokens", "4")[0] == 0


def test_distilled_runs_learn_from_the_teacher(call: Any) -> None:
    keys = ["--model.width", "16", "--model.context", "16", "--train.steps", "5", "--task.hidden", "0.1"]
    words = ["compress", "tiny", "--to", "distill=shakespeare-small", "--tokens", "256", "--json", *keys]
    code, record, error = call(*words)
    assert code == 0, error
    assert record["table"][1]["bytes"] < record["table"][0]["bytes"]
    assert call("evaluate", record["run"], "--json")[0] == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--to", "int3"), "int3"),
        (("--to", "prune"), "prune=0.3"),
        (("--to", "prune=2"), "between 0 and 1"),
        (("--to", "prune=a"), "fraction"),
        (("--to", "int8", "--model.width", "3"), "model.width"),
    ],
)
def test_mistakes_are_named(call: Any, words: tuple[str, ...], named: str) -> None:
    code, _, error = call("compress", "tiny", *words)
    assert code == 2
    assert named in error
