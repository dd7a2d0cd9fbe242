"""Completion scripts, the one for bash in a real bash."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from regard.cli import main
from regard.commands import COMMANDS
from regard.commands.completion import INSTALL, bash_script, fish_script, flags


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "regard"
    path.write_text(bash_script(zsh=False), encoding="utf-8")
    return path


def completed(script: Path, *line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    code = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _regard; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-uc", code, "bash", "regard", *line], cwd=script.parent, capture_output=True, text=True
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_keys_values_and_runs(script: Path) -> None:
    assert completed(script, "tr") == ["train", "translate"]
    assert set(completed(script, "")) == {*COMMANDS, "--help", "--version"}
    assert completed(script, "generate", "--top") == ["--top-k", "--top-p"]
    assert "shakespeare-lstm" in completed(script, "train", "shakes")
    assert "--model.position" in completed(script, "train", "--model.pos")
    assert completed(script, "train", "--model.position", "al") == ["alibi"]
    assert completed(script, "train", "--train.compile", "t") == ["true"]
    assert completed(script, "serve", "--no") == ["--no-browser"]
    assert completed(script, "study", "extra") == ["extrapolation"]
    assert completed(script, "completion", "z") == ["zsh"]
    (script.parent / "runs" / "wide").mkdir(parents=True)
    (script.parent / "runs" / "wide" / "config.toml").touch()
    assert completed(script, "resume", "w") == ["wide"]
    assert completed(script, "recipes", "wi") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_the_help_is_completed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    listed = [word for line in capsys.readouterr().out.split("options:")[1].splitlines() for word in line.split()[:1]]
    known = {f"--{name}" for name in flags(command)}
    assert {word for word in listed if word.startswith("--")} <= known


def test_zsh_loads_the_functions_of_bash_and_fish_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["script"].startswith("#compdef regard\nautoload -U +X bashcompinit && bashcompinit\n_regard() {")
    fish = fish_script()
    assert all(f"-a {command} -d" in fish for command in COMMANDS)
    assert "-l model.position -d" in fish


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_the_commands_of_the_help_work_in_a_new_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--help"]) == 0
    said = capsys.readouterr().out
    for shell, file in INSTALL.items():
        assert f"mkdir -p {file.rpartition('/')[0]}\n" in said
        assert f"regard completion {shell} > {file}" in said
