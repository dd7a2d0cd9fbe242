"""`regard compare --plan` only says what a comparison takes."""

import json
from pathlib import Path

import pytest

from regard import cli


def test_a_plan_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--model.layers", "1", "--model.context", "64", "--data.size", "2", "--data.validation", "8"]
    command = ["compare", "gpt: toy-copy --model.heads 2", "lstm: toy-copy --model recurrent", "--model.width", "16"]
    command += [*sizes, "--data.batch", "4", "--train.device", "cpu", "--budget", "steps=25", "--workers", "2"]
    assert cli.main([*command, "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == {"gpt": [25], "lstm": [25]}
    assert list(tmp_path.iterdir()) == []
