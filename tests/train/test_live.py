"""The live line: one line on a terminal, plain lines elsewhere."""

import io
import re
from collections import deque
from pathlib import Path

import pytest
import torch
from train_kit import experiment, start

from regard.train import LiveLine, Observer, TrainingResult, TrainingStep, live, train
from regard.train.device import measured_peak
from regard.train.live import LiveCurve, RankLine
from warm_process import python


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self, height: int) -> list[str]:
        """What a terminal of so many rows shows at the end; what was scrolled away is not on it."""
        rows, row, column = [""] * height, 0, 0
        for part in re.findall("\x1b\\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if part == "\n":
                row, column = row + 1, 0
                if row == height:
                    rows, row = [*rows[1:], ""], height - 1
            elif part == "\r":
                column = 0
            elif part == "\x1b[2K":
                rows[row] = ""
            elif part.startswith("\x1b["):
                row = max(0, row - int(part[2:-1] or 1)) if part.endswith("A") else row
            else:
                rows[row] = rows[row].ljust(column)[:column] + part + rows[row][column + len(part) :]
                column += len(part)
        return [row.rstrip() for row in rows]


def test_plain_lines_say_everything(text, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "PLAIN_EVERY", 0.0)
    out = io.StringIO()
    wanted = experiment(text)
    train(wanted, start(tmp_path, wanted), [LiveLine(out)])
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert lines[0].startswith("training to step 8 on cpu in float32")
    wanted_line = (
        r"step 7/8  loss \d\.\d{4}  validation \d\.\d{4}  [\d,]+ tokens/s  \d+% of peak  \d+\.\d\d GiB  0:00 left"
    )
    assert any(re.fullmatch(wanted_line, line) for line in lines), lines
    assert any(re.fullmatch(r"step 4  validation loss \d\.\d{4}", line) for line in lines)
    assert lines[-1].startswith("done: 8 steps, 256 tokens")


@pytest.mark.parametrize(("share", "words"), [(0.1234, "on 12 % of"), (0.004, "on 0.4 % of"), (None, "")])
def test_a_loss_on_a_part_of_the_validation_set_says_how_much_of_it(text, tmp_path, share, words):
    class Partly(LiveLine):
        def evaluated(self, step, measures):
            super().evaluated(step, measures if share is None else {**measures, "validation_share": share})

    out, wanted = io.StringIO(), experiment(text)
    train(wanted, start(tmp_path, wanted), [Partly(out)])
    line = next(line for line in out.getvalue().splitlines() if line.startswith("step 4  validation"))
    assert line.endswith(f", {words} the validation set") if words else "the validation set" not in line


def test_plain_lines_come_seldom(text, tmp_path):
    out = io.StringIO()
    wanted = experiment(text, evaluate_every=None)
    train(wanted, start(tmp_path, wanted), [LiveLine(out)])
    drawn = [line for line in out.getvalue().splitlines() if line.startswith("step ") and "/8" in line]
    assert len(drawn) == 2  # the first and the last


def test_a_terminal_gets_one_line_drawn_again(text, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "DRAWN_EVERY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    wanted = experiment(text)
    train(wanted, start(tmp_path, wanted), [LiveLine(out)])
    assert "\x1b[" in out.getvalue()
    assert "of peak" in out.getvalue()


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setattr(live, "DRAWN_EVERY", 0.0)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    return Terminal()


def test_the_curve_stays_on_the_screen(text, tmp_path, terminal):
    wanted = experiment(text)
    train(wanted, start(tmp_path, wanted), [LiveCurve(terminal)])
    shown = terminal.screen(24)
    top = next(i for i, row in enumerate(shown) if row[6:7] == "┤")
    assert all(row[6] in "┤│" for row in shown[top : top + 16])
    assert sum(row.count("●") for row in shown[top : top + 16]) == 2  # both evaluations, the last one too
    assert shown[top + 18].startswith("step 8/8  loss ")
    assert shown[top + 19].startswith("done: 8 steps")
    assert not any(shown[top + 20 :])


def test_the_curve_stays_when_training_fails(text, tmp_path, terminal):
    class Fails(Observer):
        def stepped(self, step):
            if step.step == 6:
                raise OSError("no more")

    wanted = experiment(text)
    with pytest.raises(OSError, match="no more"):
        train(wanted, start(tmp_path, wanted), [LiveCurve(terminal), Fails()])
    shown = terminal.screen(24)
    assert sum(row[6:7] in ("┤", "│") for row in shown) == 16
    assert any(row.startswith("step 6/8") for row in shown)


@pytest.mark.parametrize("dumb", [False, True], ids=["no terminal", "a dumb terminal"])
def test_without_a_terminal_that_can_draw_the_curve_says_so_once(text, tmp_path, monkeypatch, dumb):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal() if dumb else io.StringIO()
    wanted = experiment(text)
    train(wanted, start(tmp_path, wanted), [LiveCurve(out)])
    assert out.getvalue().count("--watch needs a terminal") == 1
    assert "step 8/8  loss" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_run_with_nothing_left_to_do_is_not_said_to_go_on(text, tmp_path):
    wanted = experiment(text)
    run = start(tmp_path, wanted)
    train(wanted, run)
    for line in (LiveLine, LiveCurve):
        out = io.StringIO()
        train(wanted, run, [line(out)], resume=True)
        assert out.getvalue() == ""


def test_an_interrupted_run_is_told_how_to_go_on():
    out = io.StringIO()
    LiveLine(out).finished(TrainingResult(Path("runs/a-1"), 5, 9, 1.0, None, 100, 65.0, interrupted=True))
    assert "regard resume runs/a-1" in out.getvalue()


def test_the_peak_is_quick_and_of_a_sane_size():
    peak = measured_peak(torch.device("cpu"), torch.float32)
    assert 1e8 < peak < 1e14


def test_no_utilization_above_the_peak_is_shown(monkeypatch):
    """A peak that was measured while other processes were busy is measured again; one still below is not shown."""
    measured = iter([5e5])  # FLOP/s
    again = lambda device, dtype: next(measured)  # noqa: E731
    again.cache_clear = lambda: None
    monkeypatch.setattr(live, "measured_peak", again)
    out = io.StringIO()
    line = LiveLine(out)
    line._steps, line._device, line._evaluation = 100, torch.device("cpu"), []
    line._recent = deque([(0.0, 1, 100), (1.0, 2, 1100)])  # 1,000 tokens per second
    step = TrainingStep(step=2, loss=1.0, lr=0.1, norm=1.0, tokens=1100, seconds=1.0)
    line._flops, line._dtype = 250.0, torch.float32
    for share, shown in ((0.5e-3, "50% of peak"), (1.13e-3, "50% of peak"), (1.13e-3, "")):
        line._share = share
        assert ("of peak" in line._line(step)) == bool(shown)
        assert shown in line._line(step)


@pytest.mark.parametrize(("seconds", "shown"), [(5, "0:05"), (65.4, "1:05"), (3661, "1:01:01"), (-1, "0:00")])
def test_clock(seconds, shown):
    assert live.clock(seconds) == shown


def test_a_step_is_cheap_to_watch():
    """Between two drawings an observer of every step costs next to nothing."""
    import time

    line = LiveLine(io.StringIO())
    line._steps, line._due = 10**9, time.monotonic() + 3600
    began = time.process_time()
    for number in range(2000):
        line.stepped(TrainingStep(number, 1.0, 1.0, 1.0, 1, 1.0))
    assert (time.process_time() - began) / 2000 < 1e-4


def test_a_long_evaluation_shows_its_progress(text, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "PATIENCE", 0.0)
    monkeypatch.setattr(live, "PLAIN_EVERY", 0.0)
    out = io.StringIO()
    wanted = experiment(text)
    train(wanted, start(tmp_path, wanted), [LiveLine(out)])
    shown = [line for line in out.getvalue().splitlines() if "evaluating" in line]
    assert shown[0].startswith("step 4  evaluating, ")
    assert shown[-1] == "step 8  evaluating, 100%"


def test_a_log_file_has_plain_lines(text, tmp_path):
    """A whole `regard train` with standard error in a file: the end of the run is shown, without carriage returns."""
    slow = "import os, sys, regard.runs.waiting as w, regard.train.live as l, regard.data.origins.progress as p\n"
    slow += "for stream in (1, 2): os.dup2(os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)\n"
    slow += "w.DELAY = l.PATIENCE = l.PLAIN_EVERY = p._PATIENCE = 0.0\nfrom regard.cli import main\nsys.exit(main())"
    options = ["--train.steps", "3", "--train.device", "cpu", "--model.layers", "1", "--model.width", "32"]
    done = python(slow, tmp_path, "train", "shakespeare", "--data.path", str(text), *options, "--doctor")
    written = (tmp_path / "log").read_bytes()
    assert done.returncode == 0, written
    assert b"\r" not in written
    assert b"\x1b" not in written
    assert b"evaluating" in written
    assert b"writing the report, " in written


def test_every_rank_prints_its_own_line_for_debugging(text, tmp_path):
    out, wanted = io.StringIO(), experiment(text, steps=2)
    train(wanted, start(tmp_path, wanted), [RankLine(3, out)])
    first, second = out.getvalue().splitlines()
    assert first == "rank 3: 1 lane on cpu"
    assert re.fullmatch(r"rank 3: step 1 .* GiB", second)
