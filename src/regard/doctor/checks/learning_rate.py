"""A learning rate that is too high or too low, judged by losses, updates and the schedule."""

import math
import statistics

from regard.doctor import Check, Findings, History
from regard.doctor.context import RECENT
from regard.doctor.reference import near, reference_at
from regard.pages.numbers import short
from regard.train import AdamWConfig, MuonConfig

#: An update relative to the weights. About 1e-3 is good; with 0.05, twenty updates replace a weight. Both count only
#: beside a loss that does badly: matrices that begin small have large updates in a healthy run.
LARGE_UPDATE, SMALL_UPDATE = 0.05, 1e-3
#: The highest factor of a schedule within a run, and the mean one: below, the configured rate is not the run's.
HIGHEST, MEAN = 0.5, 0.05
#: Nats: a loss so far above that of untrained weights, or by so little below it after `SETTLED` steps at full rate.
WORSE, BARELY, SETTLED = 0.1, 0.1, 30
#: Nats that a loss must have fallen in the second half of a run whose updates are large to the end.
STUCK = 0.02
#: The factor by which clipping divides the usual gradient from which on it, not the rate, makes updates small; not for
#: optimizers that divide by the gradient's size, whose updates do not depend on it.
CLIPPED, NORMALIZED = 10.0, (AdamWConfig, MuonConfig)


class LearningRateTooHigh(Check):
    kind, description = "rate_too_high", "the learning rate is too high"
    follows = ("foreign_writes", "initial_loss", "exploding_gradients")

    def on_history(self, history: History) -> Findings:
        losses, updates = history.losses, history.updates
        if len(losses) < RECENT:
            return
        update = max(updates, default=None)
        if update is not None and update < LARGE_UPDATE:
            return
        # A single bad batch is a loss spike: three losses in a row must be high.
        peak = max((min(losses[i : i + 3]) for i in range(1, len(losses) - 2)), default=0.0)
        first, now = losses[0], statistics.median(losses[-RECENT:])
        best = min(statistics.median(losses[i : i + RECENT]) for i in range(0, len(losses) - RECENT + 1, RECENT // 2))
        middle = statistics.median(losses[len(losses) // 2 - RECENT : len(losses) // 2] or losses)
        large = bool(updates) and updates[-1] > 2 * LARGE_UPDATE
        stuck = large and len(losses) >= 4 * RECENT and now > middle - STUCK
        lost = now >= best + 5 * WORSE
        if not (peak >= first + WORSE or lost or stuck):
            return
        if update is None and now < first - WORSE and not lost:
            return  # without weights to measure, only a loss that stays bad counts
        rate = max(history.rates)
        moved = "" if update is None else f", and one update is {update:.2g} times as large as the weights"
        course = f"stays at {now:.3g}" if stuck and peak < first else f"rose to {max(peak, now):.3g}"
        evidence = f"the loss {course} from {first:.3g} at the start{moved}"
        if history.rates[0] >= rate / 2 and now < first - 3 * WORSE and now < best + WORSE:
            cause = "the first updates have the full rate, and the run has only recovered from them"
            yield self.finding("train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
            return
        cause = f"at {short(rate)} each update overshoots"
        yield self.finding("train.optimizer.lr", evidence, cause, self.run.lower_rate)


class LearningRateTooLow(Check):
    kind, description = "rate_too_low", "the learning rate is too low"
    follows = ("unoptimized_parameters", "foreign_writes", "task_loss", "heavy_decay", "step_rate", "step_update")

    def on_history(self, history: History) -> Findings:
        too_high = any(True for _ in LearningRateTooHigh(self.run).on_history(history))
        if len(history.steps) >= RECENT and not too_high:
            scheduled = list(self._schedule(history))
            yield from scheduled or self._slow(history)

    def _schedule(self, history: History) -> Findings:
        """A schedule that never comes near the configured rate, or leaves it too early."""
        train, rates = self.run.experiment.train, history.rates
        steps, highest = train.steps or 0, max(rates)
        factors = [train.schedule.factor(step, steps) for step in range(0, steps, max(1, steps // 200))] or [1.0]
        reached = max(factors[: len(rates) * len(factors) // max(steps, 1)], default=0.0) * train.optimizer.lr
        after = rates[rates.index(highest) :]
        low = sum(rate < MEAN * highest for rate in after) / len(rates)
        if max(factors) < HIGHEST:
            evidence = f"the highest rate of all {steps:,} steps is {max(factors):.1%} of the configured rate"
            cause = "the schedule's warm-up is longer than the run"
            yield self.finding("train.schedule.warmup", evidence, cause, "--train.schedule.warmup 0.05")
        elif 0 < highest < reached * HIGHEST:
            evidence = f"the highest rate was {short(highest)}, and {short(reached)} was configured"
            cause = "something else than the schedule lowers the rate"
            yield self.finding("train.optimizer.lr", evidence, cause, "find what else sets the optimizer's rate")
        elif low > 0.5:
            evidence = f"in {low:.0%} of the steps the rate was below a twentieth of the highest"
            cause = "the schedule ends long before the run: it counts other steps, or decays too fast"
            yield self.finding("train.schedule", evidence, cause, "one step of the schedule for each update")
        elif statistics.mean(factors) < MEAN:
            evidence = f"the mean rate of all {steps:,} steps is {statistics.mean(factors):.1%} of the highest"
            cause = "the schedule decays when most of the run is still to come"
            yield self.finding("train.schedule", evidence, cause, "--train.schedule cosine")

    def _slow(self, history: History) -> Findings:
        """A loss that hardly falls, with updates that hardly move the weights."""
        losses, updates, highest = history.losses, history.updates, max(history.rates)
        full = [i for i, rate in enumerate(history.rates) if rate >= highest / 2]
        last = history.steps[-1].step
        if last - history.steps[full[0]].step + 1 < SETTLED or len(full) < RECENT:
            return
        update = statistics.median(updates) if updates else None
        fell = losses[0] - statistics.median(losses[-RECENT:])
        untrained = losses[0] > 0.8 * math.log(max(self.run.vocabulary, 2))  # a fine-tuned model may well move little
        slow = bool(updates) and max(updates) < SMALL_UPDATE and untrained and 0 < fell < 0.2 * losses[0]
        flat = -WORSE < fell < BARELY and (update is None or update <= SMALL_UPDATE)
        if not slow and not flat:
            return
        size = 0 if self.run.model is None else sum(p.numel() for p in self.run.model.parameters())
        known = reference_at(self.run.experiment, size, last)
        if known is not None and update and known.update and near(update, known.update, 2.0):
            return  # the recipe begins like this
        if update is None and history.norm() < 1e-6:
            return  # no gradient reaches the weights: another fault
        if statistics.median(losses[-RECENT:]) < self.run.token_entropy + BARELY:
            return  # random tokens: their frequencies are all that can be learned
        moved = "" if update is None else f"; an update is {update:.1g} of the weights, where 1e-3 is usual"
        evidence = f"the loss fell by {fell:.3f} in {last:,} steps{moved}"
        clip, normalized = self.run.experiment.train.clip, isinstance(self.run.experiment.train.optimizer, NORMALIZED)
        if clip is not None and not normalized and history.norm() > CLIPPED * clip:
            evidence += f"; clipping divides gradients by {history.norm() / clip:,.0f}"
            cause = f"every gradient is cut to a norm of {short(clip)}, and updates are proportional to it"
            yield self.finding("train.clip", evidence, cause, f"--train.clip {short(max(1.0, history.norm()))}")
            return
        factor = 100.0 if not update else min(max(30 * SMALL_UPDATE / update, 10.0), 1000.0)
        change = f"--train.optimizer.lr {short(highest * factor)}"
        yield self.finding("train.optimizer.lr", evidence, "the weights hardly move", change)
