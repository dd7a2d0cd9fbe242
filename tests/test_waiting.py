"""What a person is told who has to wait."""

from __future__ import annotations

import re
import time

from regard.runs import waiting as module
from regard.runs.waiting import progress, waiting


def first_line(capsys) -> str:
    """Wait until something is said."""
    for _ in range(6000):
        if said := capsys.readouterr().err:
            return said.splitlines()[0]
        time.sleep(0.1)
    raise AssertionError("nothing was said")


def test_nothing_is_said_about_what_is_quick(capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY", 600.0)
    with waiting("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_said_as_it_is_by_then(capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY", 1.0)
    with waiting("reading") as say:
        say("drawing")
        assert first_line(capsys).startswith("drawing, ")


def test_progress_says_how_long_the_rest_will_take(capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY", 1.0)
    line = ""
    for number in progress(range(4), 4, "lines"):
        if number == 2:
            line = first_line(capsys)
    assert re.fullmatch(r"2 of 4 lines, \d+ s, \d+:\d\d left", line)
