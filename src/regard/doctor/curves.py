"""What the numbers of every step tell by themselves: jumps, rates that are too high or low, learning by heart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from regard.doctor import limits
from regard.doctor.finding import Finding

RECENT = 10


class Curves:
    """Losses, rates, norms and validation losses of a run, as they come or as they were logged.

    ``vocabulary``: how many tokens there are to choose from, where that is known.
    """

    def __init__(self, train: Any, vocabulary: int | None = None):
        self.train = train
        self.guess = math.log(vocabulary) if vocabulary else math.inf  # the loss of one who knows nothing
        self.losses: list[tuple[int, float]] = []
        self.rates: list[float] = []
        self.norms: list[float] = []
        self.validation: list[tuple[int, float]] = []
        self.moves: list[float] = []  # updates over weights, where they were measured

    def add(self, step: int, loss: float, rate: float, norm: float) -> None:
        """One step."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.losses.append((step, loss))
            self.rates.append(rate)
            self.norms.append(norm)

    def read(self, record: Mapping[str, Any]) -> None:
        """One record of metrics.jsonl, where what is not finite is a word."""
        if "loss" in record:
            self.add(record["step"], *(_number(record.get(name)) for name in ("loss", "lr", "grad_norm")))
        if "validation_loss" in record and math.isfinite(loss := _number(record["validation_loss"])):
            self.validation.append((record["step"], loss))

    def jumped(self) -> float | None:
        """By how much the last loss is above those before, if that is more than they vary."""
        *before, last = [loss for _, loss in self.losses[-limits.SPIKE_WINDOW - 1 :]]
        if len(before) < limits.SPIKE_WINDOW:
            return None
        middle = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(loss - middle) for loss in before)  # of a normal distribution
        rise = last - max(before)
        return rise if rise > max(limits.SPIKE_NATS, limits.SPIKE_SPREADS * spread) else None

    def norm(self) -> float:
        """The middle of the last gradient norms."""
        return statistics.median(self.norms[-2 * RECENT :]) if self.norms else 0.0

    def findings(self) -> Iterator[Finding]:
        """Everything but jumps, which are asked for step by step."""
        if len(self.losses) >= RECENT:
            yield from self._too_high()
            yield from self._too_low()
            yield from self._climbing()
        yield from self.by_heart()

    def _climbing(self) -> Iterator[Finding]:
        """Gradients that grow throughout a run, though in no layer more than in others."""
        if len(self.norms) < 6 * RECENT:
            return
        early, late = (statistics.median(part) for part in (self.norms[RECENT : 3 * RECENT], self.norms[-2 * RECENT :]))
        if late > max(limits.CLIMBED, limits.CLIMBS * early):
            evidence = f"the gradient's norm has grown from {early:.3g} to {late:.3g}"
            cause = "gradients of earlier updates are still in it, or weights grow without end"
            change = "clear gradients after every update; --train.clip 1.0 lessens the harm"
            yield Finding("exploding_gradients", "", evidence, cause, change)

    def _too_high(self) -> Iterator[Finding]:
        values = [loss for _, loss in self.losses]
        # A single bad batch is another matter: three losses in a row must be high.
        peak = max((min(values[i : i + 3]) for i in range(1, len(values) - 2)), default=0.0)
        first, now = values[0], statistics.median(values[-RECENT:])
        best = min(statistics.median(values[i : i + RECENT]) for i in range(0, len(values) - RECENT + 1, RECENT // 2))
        move = max(self.moves, default=None)
        if move is not None and move < limits.MOVES_MUCH:
            return
        middle = statistics.median(values[len(values) // 2 - RECENT : len(values) // 2] or values)
        large = bool(self.moves) and self.moves[-1] > 2 * limits.MOVES_MUCH
        stuck = large and len(values) >= 4 * RECENT and now > middle - limits.STUCK
        if peak < first + limits.WORSE and now < best + 5 * limits.WORSE and not stuck:
            return
        if move is None and now < first - limits.WORSE and now < best + 5 * limits.WORSE:
            return  # without weights to measure, only a loss that stays bad is telling
        rate = max(self.rates)
        moved = "" if move is None else f", and one update is {move:.2g} times as large as the weights"
        went = f"stays at {now:.3g}" if stuck and peak < first else f"rose to {max(peak, now):.3g}"
        evidence = f"the loss {went} from {first:.3g} at the start{moved}"
        if self.rates[0] >= rate / 2 and now < first - 3 * limits.WORSE and now < best + limits.WORSE:
            cause = "the first updates have the full rate, and the run has only recovered from them"
            yield Finding("rate_too_high", "train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
            return
        key = f"--train.optimizer.lr {_short(rate / 10)}"
        cause = f"at {_short(rate)} each update overshoots"
        yield Finding("rate_too_high", "train.optimizer.lr", evidence, cause, key)

    def _never_warm(self) -> Iterator[Finding]:
        """A schedule that never comes near the rate that was asked for, however the loss does."""
        steps = self.train.steps or 0
        factors = [self.train.schedule.factor(step, steps) for step in range(0, steps, max(1, steps // 200))] or [1.0]
        if max(factors) < limits.COLD:
            evidence = f"the highest rate of all {steps:,} steps is {max(factors):.1%} of the rate that was asked for"
            cause = "the schedule's warm-up is longer than the run"
            yield Finding("rate_too_low", "train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
            return
        asked = getattr(self.train.optimizer, "lr", 0.0) * max(
            factors[: len(self.rates) * len(factors) // max(steps, 1)], default=0.0
        )
        if 0 < max(self.rates) < asked * limits.COLD:
            evidence = f"the highest rate was {_short(max(self.rates))}, and {_short(asked)} was asked for"
            cause = "something else than the schedule lowers the rate"
            yield Finding(
                "rate_too_low", "train.optimizer.lr", evidence, cause, "see who else sets the optimizer's rate"
            )
            return
        after = self.rates[self.rates.index(max(self.rates)) :]
        gone = sum(rate < limits.COOL * max(self.rates) for rate in after) / len(self.rates)
        if gone > 0.5:
            evidence = f"in {gone:.0%} of the steps the rate was below a twentieth of the highest"
            cause = "the schedule comes to its end long before the run: it counts other steps, or decays too fast"
            yield Finding("rate_too_low", "train.schedule", evidence, cause, "one step of the schedule for each update")
        elif statistics.mean(factors) < limits.COOL:
            evidence = f"the mean rate of all {steps:,} steps is {statistics.mean(factors):.1%} of the highest"
            cause = "the schedule's decay takes the rate away when most of the run is still to come"
            yield Finding("rate_too_low", "train.schedule", evidence, cause, "--train.schedule cosine")

    def _too_low(self) -> Iterator[Finding]:
        cold = list(self._never_warm())
        yield from cold
        if cold:
            return
        highest = max(self.rates)
        full = [i for i, rate in enumerate(self.rates) if rate >= highest / 2]
        if self.losses[-1][0] - self.losses[full[0]][0] + 1 < limits.SETTLED or len(full) < RECENT:
            return
        move = statistics.median(self.moves) if self.moves else None
        values = [loss for _, loss in self.losses]
        fell = values[0] - statistics.median(values[-RECENT:])
        # From scratch, one who hardly moves and still knows little; a model that is trained on may well do both.
        slow = self.moves and max(self.moves) < limits.MOVES_LITTLE and values[0] > 0.8 * self.guess and fell > 0
        if not (slow and fell < 0.2 * values[0]) and (
            not -limits.WORSE < fell < limits.BARELY or (move is not None and move > limits.MOVES_LITTLE)
        ):
            return
        if move is None and self.norm() < 1e-6:
            return  # nothing reaches the weights: that is another fault
        moved = "" if move is None else f"; an update is {move:.1g} of the weights, where 1e-3 is usual"
        evidence = f"the loss fell by {fell:.3f} in {self.losses[-1][0]:,} steps{moved}"
        times = 100.0 if not move else min(max(30 * limits.MOVES_LITTLE / move, 10.0), 1000.0)
        change = f"--train.optimizer.lr {_short(highest * times)}"
        yield Finding("rate_too_low", "train.optimizer.lr", evidence, "the weights hardly move", change)

    def by_heart(self) -> Iterator[Finding]:
        """The validation loss rises while the other falls."""
        if len(self.validation) < 2:
            return
        at, lowest = min(self.validation, key=lambda pair: pair[1])
        step, now = self.validation[-1]
        around = [loss for s, loss in self.losses if s <= at][-RECENT:]
        recent = [loss for s, loss in self.losses if s <= step][-RECENT:]
        if not around or not recent or step == at:
            return
        then, trained = statistics.median(around), statistics.median(recent)
        if now < lowest + limits.RISEN or trained > then or now - trained < limits.GAP:
            return
        evidence = (
            f"validation loss {now:.3f}, {lowest:.3f} at step {at:,}; training loss {trained:.3f}, {then:.3f} then"
        )
        cause = "the model learns this text instead of its language: too little text, or too many steps"
        change = f"--train.steps {at}, --model.dropout 0.2, or more text"
        yield Finding("overfitting", "", evidence, cause, change)


def _short(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
