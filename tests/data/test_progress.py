"""Long work is told of, short work is not, and a terminal is left clean."""

import io

import pytest

from regard.data.origins import progress as module
from regard.data.origins.progress import ProgressLine, human_size, say


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    monkeypatch.setattr(module, "_PERIODS", {True: 0.0, False: 0.0})


def work(total=1000):
    with ProgressLine("reading x", total) as progress:
        for _ in range(4):
            progress.advance(250)


def test_short_work_is_silent(capsys):
    work()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_log_gets_lines(capsys):
    work()
    assert capsys.readouterr().err.splitlines() == [f"reading x: {share}% of 1.0 kB" for share in (25, 50, 75, 100)]
    work(total=0)  # unknown
    assert capsys.readouterr().err.splitlines()[-1] == "reading x: 1.0 kB"


@pytest.mark.usefixtures("impatient")
def test_a_terminal_gets_one_line_that_goes_away(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    work()
    *_, last, cleared, end = terminal.getvalue().split("\r")
    assert last == "reading x: 100% of 1.0 kB"
    assert (cleared.strip(), end) == ("", "")
    assert len(cleared) >= len(last)


@pytest.mark.usefixtures("impatient")
def test_of_several_processes_the_first_one_speaks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    work()
    say("nobody hears this")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_reading_a_file_is_told_of(tmp_path, capsys):
    from regard.data.texts.text_file import TextFile

    (tmp_path / "text.txt").write_text("to be")
    TextFile(tmp_path / "text.txt").summary()
    assert capsys.readouterr().err == "reading text.txt: 100% of 5 B\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1000, "1.0 kB"), (999_600, "1.0 MB"), (5 * 10**9, "5.0 GB"),
                                             (123_456, "123 kB"), (10**16, "10000 TB")])  # fmt: skip
def test_sizes(count, text):
    assert human_size(count) == text
