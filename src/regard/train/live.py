"""Terminal output during training: a line with loss, tokens/s, share of peak FLOP/s, memory and time left; a curve."""

import math
import sys
import time
from collections import deque
from typing import Any, TextIO

from regard.config.parts import with_options
from regard.models import flops_per_token
from regard.runs.curve import MARK, plot
from regard.runs.waiting import clock
from regard.train.device import measured_peak, memory
from regard.train.evaluate import judged_in_words
from regard.train.experiment import Experiment
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep

#: Seconds between two lines without a terminal, and between two redraws on one; of an evaluation before its first line.
PLAIN_EVERY, DRAWN_EVERY, PATIENCE = 10.0, 0.2, 2.0
#: Points of the curve that are kept.
MOST_POINTS = 4000


class LiveLine(Observer):
    """Redraws one line on a terminal; prints a plain line every few seconds elsewhere."""

    _stays = False  # whether the last drawing stays on the screen at the end
    _idle = False  # whether all steps were done before
    _measured_again = False  # the peak FLOP/s
    _unit = "tokens"  # what is counted

    def __init__(self, out: TextIO | None = None):
        self.out = out if out is not None else sys.stderr
        self._live: Any = None

    def started(self, start: TrainingStart) -> None:
        """Measure the peak FLOP/s and print the first line, unless all steps are done."""
        self._steps = start.experiment.train.steps or 0
        self._idle = start.step >= self._steps
        if self._idle:
            return
        self._task = start.experiment.task.build()
        self._device, self._unit = start.device, f"{start.experiment.task.unit}s"
        self._dtype, self._flops = start.dtype, flops_per_token(start.model)
        self._share = self._flops / measured_peak(start.device, start.dtype)
        self._due = 0.0
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=64)  # (clock, step, tokens)
        self._evaluation: list[str] = []
        self._evaluating = 0.0  # when the present evaluation began; 0: none is running
        if self.out.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.out)
            if console.is_terminal and not console.is_dumb_terminal:  # the cursor can move
                self._live = Live(console=console, auto_refresh=False, transient=not self._stays)
                self._live.start()
        verb = "resuming from" if start.step else "training to"
        count = f"step {start.step} of {self._steps}" if start.step else f"step {self._steps}"
        count += "" if (seconds := start.experiment.train.seconds) is None else f" or so, in {seconds:g} seconds"
        self._say(f"{verb} {count} on {start.device} in {str(start.dtype).removeprefix('torch.')}: {start.run.path}")

    def changed(self, experiment: Experiment) -> None:
        """Count with another number of steps."""
        self._steps = experiment.train.steps or 0

    def stepped(self, step: TrainingStep) -> None:
        """Redraw if due."""
        now = time.monotonic()
        if now < self._due and step.step < self._steps:
            return
        self._due = now + (DRAWN_EVERY if self._live else PLAIN_EVERY)
        self._recent.append((now, step.step, step.tokens))
        if self._live:
            self._live.update(self._picture(self._line(step)), refresh=True)
        else:
            self._say(self._line(step))

    def evaluating(self, step: int, done: float | None) -> None:
        """Print the progress of an evaluation that takes more than two seconds."""
        now = time.monotonic()
        self._evaluating = self._evaluating or now
        if now - self._evaluating < PATIENCE or now < self._due:
            return
        self._due = now + (DRAWN_EVERY if self._live else PLAIN_EVERY)
        line = f"step {step:,}  evaluating" + ("" if done is None else f", {done:.0%}")
        if self._live:
            self._live.update(self._picture(line), refresh=True)
        else:
            self._say(line)

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Print one line; below a curve the loss is in the line that is redrawn."""
        self._evaluating = 0.0
        found = loss_in_words(measures["validation_loss"], measures.get("validation_error"))
        self._evaluation = [f"validation {found}"]
        share = measures.get("validation_share")
        of = "" if share is None else f", on {100 * share:.2g} % of the validation set"
        found += judged_in_words(self._task, measures)
        if not (self._live and self._stays):
            self._say(f"step {step:,}  validation loss {found}{of}")

    def finished(self, result: TrainingResult) -> None:
        """Print the last line, and how to resume if steps are left."""
        self._leave()
        if self._idle:
            return
        if result.interrupted:
            self._say(f"stopped after step {result.step} of {result.steps}, and saved")
            self._say(f"continue with: regard resume {result.path}{with_options()}")
        else:
            steps = f"{result.step:,} step{'s' * (result.step != 1)}"
            self._say(f"done: {steps}, {result.tokens:,} {self._unit} in {clock(result.seconds)}")

    def failed(self, error: BaseException) -> None:
        """Restore the terminal."""
        self._leave()

    def _leave(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _picture(self, line: str) -> Any:
        """What to draw on a terminal."""
        return line

    def _line(self, step: TrainingStep) -> str:
        parts = [f"step {step.step:,}/{self._steps:,}", f"loss {step.loss:.4f}", *self._evaluation]
        if len(step.terms) > 1:  # the first is most of the loss
            parts += [f"{name} {value:.3g}" for name, value in list(step.terms.items())[1:]]
        (began, first, before), (now, last, tokens) = self._recent[0], self._recent[-1]
        if last > first and now > began:
            rate = (tokens - before) / (now - began)
            parts.append(f"{rate:,.0f} {self._unit}/s")
            if rate * self._share > 1 and not self._measured_again:  # other processes were busy: measure again
                measured_peak.cache_clear()
                self._share = min(self._share, self._flops / measured_peak(self._device, self._dtype))
                self._measured_again = True
            if rate * self._share <= 1:  # a share above the peak is an error of the measurement
                parts.append(f"{rate * self._share:.0%} of peak")
        parts.append(f"{memory(self._device) / 2**30:.2f} GiB")
        if last > first and now > began:
            parts.append(f"{clock((self._steps - last) * (now - began) / (last - first))} left")
        return "  ".join(parts)

    def _say(self, line: str) -> None:
        if self._live:
            self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self.out, flush=True)


class LiveCurve(LiveLine):
    """The line with the loss curve above it; without a terminal, plain lines."""

    _stays = True
    _step: TrainingStep | None = None

    def started(self, start: TrainingStart) -> None:
        """Begin with the records of earlier sessions."""
        records = start.run.metrics()
        self._losses = [(r["step"], r["loss"]) for r in records if _finite(r.get("loss"))]
        self._validation = [(r["step"], r["validation_loss"]) for r in records if _finite(r.get("validation_loss"))]
        super().started(start)
        if self._live is None and not self._idle:
            self._say("--watch needs a terminal to draw the curve on; plain lines are printed instead")

    def stepped(self, step: TrainingStep) -> None:
        """Add the loss. Above MOST_POINTS, neighbors are averaged: a terminal has few dots."""
        self._step = step
        if _finite(step.loss):
            self._losses.append((step.step, step.loss))
        if len(self._losses) > MOST_POINTS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=False)
            self._losses = [((a + b) / 2, (x + y) / 2) for (a, x), (b, y) in pairs]
        super().stepped(step)

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """Add a mark to the curve."""
        if _finite(measures["validation_loss"]):
            self._validation.append((step, measures["validation_loss"]))
        super().evaluated(step, measures)

    def _leave(self) -> None:
        """Draw the last step and evaluation; the curve stays on the screen."""
        if self._live and self._step is not None:
            self._live.update(self._picture(self._line(self._step)))
        super()._leave()

    def _picture(self, line: str) -> Any:
        from rich.text import Text

        size = self._live.console.size
        rows = plot(self._losses, self._validation, min(size.width - 1, 120), max(4, min(16, size.height - 4)))
        legend = f"      loss: training, {MARK} validation"
        text = Text("\n".join([*rows, legend, line]), no_wrap=True, overflow="crop")
        text.highlight_regex("[\u2801-\u28ff]+", "cyan")
        text.highlight_regex(MARK, "bold yellow")
        return text


class RankLine(Observer):
    """Prints what differs between ranks, every few seconds and for each of them."""

    every_rank = True

    def __init__(self, rank: int, out: TextIO | None = None):
        self.rank, self.out = rank, out if out is not None else sys.stderr
        self._due = 0.0

    def started(self, start: TrainingStart) -> None:
        """Print the device, and the lanes of this rank."""
        self._device = start.device
        self._say(f"{start.lanes} lane{'s' * (start.lanes != 1)} on {start.device}")

    def stepped(self, step: TrainingStep) -> None:
        """Print if due."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + PLAIN_EVERY
            work = f"{step.rank_seconds[self.rank] * 1e3:.3g} ms of work" if step.rank_seconds else ""
            self._say(f"step {step.step:,}  {work}  {memory(self._device) / 2**30:.2f} GiB")

    def _say(self, line: str) -> None:
        print(f"rank {self.rank}: {line}", file=self.out, flush=True)


class ResumeNotice(Observer):
    """Prints whether the run is already finished."""

    def __init__(self, out: TextIO | None = None):
        self.out = out if out is not None else sys.stderr

    def started(self, start: TrainingStart) -> None:
        """Print before the first step."""
        if start.step >= (start.experiment.train.steps or 0):
            print(f"{start.run.path} is finished: all {start.step:,} steps are done", file=self.out, flush=True)


def loss_in_words(loss: float, error: float | None) -> str:
    """A loss; that of a sample with half of its 95 % interval, from the standard error.

    >>> loss_in_words(1.5234, 0.0051)
    '1.5234 ± 0.0100'
    """
    return f"{loss:.4f}" if error is None else f"{loss:.4f} ± {1.96 * error:.4f}"


def _finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)
