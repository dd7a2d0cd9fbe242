"""A learning rate that is too high or too low, by losses, updates and the schedule; settings that outweigh it."""

import math
import statistics
from typing import NamedTuple, Self

from regard.doctor import Check, Findings, History, ReplayedStep, TrainingRun
from regard.doctor.check import DEFINITIONS
from regard.doctor.context import RECENT
from regard.doctor.reference import near, reference_at
from regard.pages.numbers import short

#: An update relative to the weights. About 1e-3 is good; with 0.05, twenty updates replace a weight. Both count only
#: beside a loss that does badly: matrices that begin small have large updates in a healthy run.
LARGE_UPDATE, SMALL_UPDATE = 0.05, 1e-3
#: The highest factor of a schedule within a run, and the mean one: below, the configured rate is not the run's.
HIGHEST, MEAN = 0.5, 0.05
#: Nats: a loss so far above that of untrained weights, or by so little below it after `SETTLED` steps at full rate.
WORSE, BARELY, SETTLED = 0.1, 0.1, 30
LEARNED = 100  # steps in which a run that nothing holds back has learned the frequencies of tokens
#: A smaller update, and by how many nats more it lowers the loss of the batch that both were made from.
PART, OVERSHOT = 0.3, 0.01
#: Nats that a loss must have fallen in the second half of a run whose updates are large to the end.
STUCK = 0.02
#: Values of settings that hold no run back; a larger one (of `clip`, a smaller one) is compared with them.
USUAL = {"clip": 1.0, "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.1}
USUAL |= {"optimizer.rest_eps": 1e-8, "optimizer.rest_weight_decay": 0.1}
#: How many times larger the updates are with the usual value, and how large what the setting adds is relative to them,
#: from which on it decides and not the rate. Weight decay is far less than that in equilibrium (Kosson et al. 2024).
HELD_BACK, OUTWEIGHED = 5.0, 1.0


class SettingDominates(Check):
    """Makes an update again with the usual value of each setting that is not usual."""

    kind, description = "setting_dominates", "one setting outweighs the gradient in every update"

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._held_back: dict[str, float] = {}

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        train, replay = self.run.settings["train"], self.run.replay
        own = {"clip": train["clip"], **{f"optimizer.{name}": value for name, value in train["optimizer"].items()}}
        unusual = [name for name, value in USUAL.items() if exceeds(name, own.get(name), value)]
        if replay is None or not unusual or not replayed.step.lr:
            return
        plain = replay.updates_with(replayed, [])
        for name in unusual:
            usual = replay.updates_with(replayed, [f"--train.{name}", str(USUAL[name])])
            pairs = [(u, v) for u, v in zip(plain, usual, strict=True) if u.any() and v.any()]
            self._held_back[name] = statistics.median([float(v.norm() / u.norm()) for u, v in pairs] or [1.0])
            share = statistics.median([float((u - v).norm() / v.norm()) for u, v in pairs] or [0.0])
            if share > OUTWEIGHED:
                evidence = (
                    f"what {short(own[name])} adds to the update of the median matrix is {share:.3g} times the rest"
                )
                cause = "it moves the weights more than their gradients do: they shrink faster than they learn"
                yield self.finding(f"train.{name}", evidence, cause, f"--train.{name} {short(USUAL[name])}")

    def on_history(self, history: History) -> Findings:
        name = max(self._held_back, key=lambda one: self._held_back[one], default="")
        if not name or self._held_back[name] <= HELD_BACK:
            return
        if slow := hardly_learns(self.run, history, 10 * SMALL_UPDATE) or above_frequencies(self.run, history):
            value = f"--train.{name} {short(USUAL[name])}"
            evidence = f"{slow}; with {value} an update is {self._held_back[name]:,.0f} times as large"
            yield self.finding(
                f"train.{name}", evidence, "it makes updates small, whatever the learning rate is", value
            )


def above_frequencies(run: TrainingRun, history: History) -> str:
    """Evidence for a loss that is still above that of the frequencies of tokens; "" if it is not so.

    Unlike the updates relative to the weights, this does not depend on matrices that begin at zero.
    """
    if len(history.losses) < LEARNED or not (alone := run.entropies[0]):
        return ""
    now = statistics.median(history.losses[-RECENT:])
    much = f"the loss is {now:.2f} after {history.last:,} steps, where the frequencies of tokens alone give {alone:.2f}"
    return much if now > alone + BARELY else ""


def exceeds(name: str, value: object, usual: float) -> bool:
    """Whether a setting is beyond its usual value."""
    return isinstance(value, int | float) and (value < usual if name == "clip" else value > usual)


class LearningRateTooHigh(Check):
    kind, description = "rate_too_high", "the learning rate is too high"
    follows = (DEFINITIONS, "initial_loss", "exploding_gradients", "setting_dominates", "unusual_setting")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._measured = False

    def on_replay(self, replayed: ReplayedStep) -> Findings:
        """Of the first update that is replayed, a part lowers the loss more. Later, weights have grown to it."""
        replay = self.run.replay
        if replay is None or self._measured or replay.model.carries_state or not replayed.step.terms:
            return
        self._measured = True
        before = next(iter(replayed.step.terms.values()))
        whole, part = (replay.loss(replayed, share) - before for share in (1.0, PART))
        if part < 0 and whole > part + OVERSHOT:
            changes = f"changes the loss of the batch by {whole:+.3f}, a third of it by {part:+.3f}"
            evidence = f"update {replayed.step.step} {changes}"
            cause = f"at {short(replayed.step.lr)} each update overshoots"
            yield self.finding("train.optimizer.lr", evidence, cause, self.run.lower_rate)

    def on_history(self, history: History) -> Findings:
        if (seen := Disturbance.of(history)) is None:
            return
        rate = max(history.rates)
        moved = "" if seen.update is None else f", and one update is {seen.update:.2g} times as large as the weights"
        stays = seen.stuck and seen.peak < seen.first
        course = f"stays at {seen.now:.3g}" if stays else f"rose to {max(seen.peak, seen.now):.3g}"
        evidence = f"the loss {course} from {seen.first:.3g} at the start{moved}"
        if history.rates[0] >= rate / 2 and seen.now < seen.first - 3 * WORSE and seen.now < seen.best + WORSE:
            cause = "the first updates have the full rate, and the run has only recovered from them"
            yield self.finding("train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
        else:
            yield self.finding(
                "train.optimizer.lr", evidence, f"at {short(rate)} each update overshoots", self.run.lower_rate
            )


class Disturbance(NamedTuple):
    """Losses that rise, or no longer fall, beside updates that are large."""

    first: float
    peak: float  # of three losses in a row
    best: float  # the lowest median of `RECENT` losses
    now: float  # the newest such median
    stuck: bool
    update: float | None  # the largest, relative to the weights; None: not measured

    @classmethod
    def of(cls, history: History) -> Self | None:
        """That of a run so far; None if its losses do well, or its updates are small."""
        losses, updates = history.losses, history.updates
        update = max(updates, default=None)
        if len(losses) < RECENT or (update is not None and update < LARGE_UPDATE):
            return None
        # A single bad batch is a loss spike: three losses in a row must be high.
        peak = max((min(losses[i : i + 3]) for i in range(1, len(losses) - 2)), default=0.0)
        first, now = losses[0], statistics.median(losses[-RECENT:])
        best = min(statistics.median(losses[i : i + RECENT]) for i in range(0, len(losses) - RECENT + 1, RECENT // 2))
        middle = statistics.median(losses[len(losses) // 2 - RECENT : len(losses) // 2] or losses)
        large = bool(updates) and updates[-1] > 2 * LARGE_UPDATE
        stuck = large and len(losses) >= 4 * RECENT and now > middle - STUCK
        lost = now >= best + 5 * WORSE
        if not (peak >= first + WORSE or lost or stuck):
            return None
        if update is None and now < first - WORSE and not lost:
            return None  # without weights to measure, only a loss that stays bad counts
        return cls(first, peak, best, now, stuck, update)


def overshot(history: History) -> bool:
    """Whether the rate is too high by the losses, and they have been above the first one since the first update."""
    return Disturbance.of(history) is not None and min(history.losses[1:4]) >= history.losses[0] + WORSE


class LearningRateTooLow(Check):
    kind, description = "rate_too_low", "the learning rate is too low"
    follows = (DEFINITIONS, "setting_dominates", "unusual_setting", "rate_too_high")

    def on_history(self, history: History) -> Findings:
        if len(history.steps) < RECENT:
            return
        scheduled = list(self._schedule(history))
        yield from scheduled
        if not scheduled and (slow := hardly_learns(self.run, history)):
            update = statistics.median(history.updates) if history.updates else 0.0
            factor = min(max(30 * SMALL_UPDATE / update, 10.0), 1000.0) if update else 100.0
            change = f"--train.optimizer.lr {short(max(history.rates) * factor)}"
            yield self.finding("train.optimizer.lr", slow, "the weights hardly move", change)

    def _schedule(self, history: History) -> Findings:
        """A schedule that never comes near the configured rate, or leaves it too early."""
        train, rates = self.run.experiment.train, history.rates
        steps, highest = train.steps or 0, max(rates)
        factors = [train.factor(step) for step in range(0, steps, max(1, steps // 200))] or [1.0]
        reached = max(factors[: len(rates) * len(factors) // max(steps, 1)], default=0.0) * train.optimizer.lr
        low = sum(rate < MEAN * highest for rate in rates[rates.index(highest) :]) / len(rates)
        if max(factors) < HIGHEST:
            evidence = f"the highest rate of all {steps:,} steps is {max(factors):.1%} of the configured rate"
            cause = "the schedule's warm-up is longer than the run"
            yield self.finding("train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
        elif 0 < highest < reached * HIGHEST:
            evidence = f"the highest rate was {short(highest)}, and {short(reached)} was configured"
            cause = "something else than the schedule lowers the rate"
            yield self.finding("train.optimizer.lr", evidence, cause, "find what else sets the optimizer's rate")
        elif low > 0.5 or statistics.mean(factors) < MEAN:
            evidence = f"in {low:.0%} of the steps the rate was below a twentieth of the highest"
            cause = "the schedule ends long before the run: it counts other steps, or decays too fast"
            yield self.finding(
                "train.schedule", evidence, cause, "--train.schedule cosine", "one step of it per update"
            )


def hardly_learns(run: TrainingRun, history: History, small: float = SMALL_UPDATE) -> str:
    """Evidence for a loss that hardly falls, with updates smaller than ``small``; "" if it is not so."""
    losses, updates, highest = history.losses, history.updates, max(history.rates, default=0.0)
    full = [step.step for step in history.steps if step.rate >= highest / 2]
    if len(full) < RECENT or history.last - full[0] + 1 < SETTLED:
        return ""
    update = statistics.median(updates) if updates else None
    now = statistics.median(losses[-RECENT:])
    fell = losses[0] - now
    untrained = losses[0] > 0.8 * math.log(max(run.vocabulary, 2))  # a fine-tuned model may well move little
    slow = bool(updates) and max(updates) < 2 * small and untrained and 0 < fell < 0.2 * losses[0]
    flat = -WORSE < fell < BARELY and (update is None or update <= small)
    if not slow and not flat:
        return ""
    size = 0 if run.model is None else sum(p.numel() for p in run.model.parameters())
    known = reference_at(run.experiment, size, history.last)
    if known is not None and update and known.update and near(update, known.update, 2.0):
        return ""  # the recipe begins like this
    if update is None and history.norm() < 1e-6:
        return ""  # no gradient reaches the weights: another fault
    if now < run.entropies[0] + BARELY:
        return ""  # random tokens: their frequencies are all that can be learned
    moved = "" if update is None else f"; an update is {update:.1g} of the weights, where 1e-3 is usual"
    return f"the loss fell by {fell:.3f} in {history.last:,} steps{moved}"
