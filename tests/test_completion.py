"""Completion scripts, each in its real shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regard.cli import main
from regard.commands import COMMANDS
from regard.commands.completion import INSTALL, bash_script, fish_script, flags

#: Lines, and what completes their last word. The folder has one run, "wide".
OFFERED = {
    "tr": {"train", "transcribe", "translate"},
    "generate --top": {"--top-k", "--top-p"},
    "train shakespeare-l": {"shakespeare-lstm"},
    "train --model.position.m": {"--model.position.mode"},
    "train --model.position al": {"alibi"},
    "train --train.compile t": {"true"},
    "serve --no": {"--no-browser"},
    "study extra": {"extrapolation"},
    "completion z": {"zsh"},
    "resume w": {"wide"},
    "recipes wid": set(),
}

Shell = Callable[[Path, Sequence[str]], list[str]]


def bash(folder: Path, lines: Sequence[str]) -> list[str]:
    (folder / "script").write_text(bash_script(zsh=False))
    code = 'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _regard; printf "%s " "${COMPREPLY[@]}"'
    return [output(folder, ["bash", "-uc", code, "bash", "regard", *line.split(" ")]) for line in lines]


def fish(folder: Path, lines: Sequence[str]) -> list[str]:
    (folder / "script").write_text(fish_script())
    code = r'source script; for line in $argv; echo (complete -C "regard $line" | string split -f 1 \t); end'
    return output(folder, ["fish", "--no-config", "-c", code, *lines]).splitlines()


def zsh(folder: Path, lines: Sequence[str]) -> list[str]:
    """At a terminal, where alone it completes. Each TAB adds what it offers to a file; Ctrl-G ends the line in both."""
    import pty

    (folder / "_regard").write_text(bash_script(zsh=True))
    (folder / ".zshrc").write_text(
        "fpath=($HOME $fpath); autoload -Uz compinit; compinit -u -D\n"
        'compadd() { local -a fits; builtin compadd -O fits "$@"; print -n - "$fits " >>log; builtin compadd "$@" }\n'
        "finish() { print >>log; BUFFER= }; zle -N finish; bindkey ^G finish\n"
    )
    keyboard, terminal = pty.openpty()
    os.write(keyboard, "".join(f"regard {line}\t\a" for line in lines).encode() + b"exit\n")
    with subprocess.Popen(
        ["zsh", "-i"], cwd=folder, env=home(folder), stdin=terminal, stdout=terminal, stderr=terminal
    ):
        os.close(terminal)
        try:
            while os.read(keyboard, 2**16):
                pass
        except OSError:  # the shell has exited
            os.close(keyboard)
    return (folder / "log").read_text().splitlines()


def output(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, env=home(folder), capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


def home(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "xterm"}


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_a_shell_completes_commands_options_keys_values_and_runs(shell: Shell, tmp_path: Path) -> None:
    """From the first line on; zsh loads the script only then."""
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"there is no {shell.__name__}")
    (tmp_path / "work" / "runs" / "wide").mkdir(parents=True)
    (tmp_path / "work" / "runs" / "wide" / "config.toml").touch()
    *offers, commands = [set(line.split()) for line in shell(tmp_path / "work", [*OFFERED, ""])]
    assert dict(zip(OFFERED, offers, strict=True)) == OFFERED
    assert commands - {"--help", "--version"} == set(COMMANDS)
    assert not shell(tmp_path, ["resume wi"])[-1].split()  # no folder of runs, and no error


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_the_help_is_completed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    listed = [word for line in capsys.readouterr().out.split("options:")[1].splitlines() for word in line.split()[:1]]
    known = {f"--{name}" for name in flags(command)}
    assert {word for word in listed if word.startswith("--")} <= known


def test_json_has_the_script_and_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["script"], result["file"]) == (bash_script(zsh=True), "~/.zfunc/_regard")


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_the_commands_of_the_help_work_in_a_new_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--help"]) == 0
    said = capsys.readouterr().out
    for shell, file in INSTALL.items():
        assert f"mkdir -p {file.rpartition('/')[0]}\n" in said
        assert f"regard completion {shell} > {file}" in said
