"""`regard generate --interactive`, piped and on a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generate_kit import REGARD

from regard.cli import main
from warm_process import cache_inside

QUICK = ("--tokens", "12", "--temperature", "0")


def test_lines_become_one_text(regard, room, monkeypatch, capsys):
    """What follows a line is what follows the whole text so far."""
    done = regard("generate", "tiny", "--interactive", *QUICK, input="to be\n\nthat\n/quit\nnever read\n")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(room)
    answers, text = [], ""
    for line in ("to be", "", "that"):
        text += ("\n" if line and text and not text.endswith("\n") else "") + line
        assert main(["generate", "tiny", "--prompt", text, *QUICK]) == 0
        alone = capsys.readouterr().out
        answers.append(alone[len(text) : -1])
        text += answers[-1]
    assert done.stdout == "".join(answer + "\n" for answer in answers)
    assert done.stderr.count("tokens at") >= 3


def test_commands_and_mistakes_leave_it_running(regard):
    lines = ["/temperature 0", "/nothing", "/temperature -1", "/top-k x", "/tokens 0", "XYZ", "/help"]
    lines += ["/tokens 5", "/top-k none", "to be", "/reset", "to be", ""]
    done = regard("generate", "tiny", "--interactive", input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()  # of 5 characters each, which hold no new line here
    assert first == second
    assert len(first) == 5
    for words in ("no /nothing", "/temperature must be", "/top-k needs a number", "must be at least 1", "'X'", "/quit"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_turns_draw_differently_and_seeds_repeat(regard):
    lines = "to be\n/reset\nto be\n/seed 2\n/reset\nto be\n"
    options = ("--temperature", "3", "--tokens", "30", "--top-k", "4")
    one, two, three = cut(regard("generate", "tiny", "--interactive", *options, input=lines).stdout, 31)
    assert len({one, two, three}) == 3
    assert regard("generate", "tiny", "--prompt", "to be", *options).stdout == f"to be{one}"


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("more", [["--json"], ["--samples", "2"], ["--prompts", "x"], ["--prompt", "a", "b"]], ids=str)
def test_what_cannot_be_typed_is_refused(capsys, more):
    assert main(["generate", "tiny", "--interactive", *more]) == 2
    assert "--interactive takes lines" in capsys.readouterr().err


class Terminal:
    """A process on a terminal of its own, as a person has it before them."""

    def __init__(self, command: list[str], folder: Path):
        import pty

        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=cache_inside(folder),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, words: str, seconds: float = 600) -> str:
        """What is shown up to these words."""
        end = time.monotonic() + seconds
        while words not in self.shown:
            assert time.monotonic() < end, f"{words!r} was not shown, but {self.shown!r}"
            try:
                self.shown += os.read(self.master, 65536).decode()
            except BlockingIOError:
                time.sleep(0.02)
        before, _, self.shown = self.shown.partition(words)
        return before

    def close(self) -> int:
        try:
            return self.process.wait(600)
        finally:
            self.process.kill()
            os.close(self.master)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_on_a_terminal(room):
    terminal = Terminal(
        [*REGARD, "generate", "tiny", "--interactive", "--tokens", "1000000", "--temperature", "0"], room
    )
    terminal.wait("quit\r\n")  # the help
    terminal.wait("> ")
    terminal.type("to be\r")
    terminal.wait("question")
    terminal.wait("question")  # an answer of a million tokens is on its way
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.wait("generated:")
    terminal.wait("> ")
    os.kill(terminal.process.pid, signal.SIGINT)  # at the prompt it only says how to leave
    terminal.wait("/quit quits")
    terminal.wait("> ")
    terminal.type("/tokens 7\r")
    terminal.wait("> ")
    terminal.type("to be\r")
    terminal.wait("generated: 7 tokens")
    terminal.wait("> ")
    terminal.type("\x04")
    assert terminal.close() == 0
