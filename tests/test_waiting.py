"""What a person is told who has to wait."""

from __future__ import annotations

import re
import time

from regard.runs import waiting as module
from regard.runs.waiting import progress, waiting


def test_nothing_is_said_about_what_is_quick(capsys) -> None:
    with waiting("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_said_as_it_is_by_then(capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.2)
    with waiting("reading") as say:
        say("drawing")
        time.sleep(0.6)
    assert capsys.readouterr().err.startswith("drawing, ")


def test_progress_says_how_long_the_rest_will_take(capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.2)
    for number in progress(range(4), 4, "lines"):
        if number == 2:
            time.sleep(0.6)
    line = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(r"2 of 4 lines, \d+ s, \d+:\d\d left", line)
