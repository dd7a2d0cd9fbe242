"""A single loss far above those before it, and the batch that caused it."""

import math
import statistics
from collections.abc import Sequence

from regard.doctor import Check, Findings
from regard.doctor.context import Record
from regard.look import evaluation_mode
from regard.train import TrainingStep
from regard.train.device import move

#: How far a loss is above all of those just before: so many times their spread (a normal deviate of 6 comes once in a
#: thousand million steps), and so much in nats, a quarter being 28 % in perplexity.
SPREADS, NATS, WINDOW = 6.0, 0.25, 10
#: Nats of a spike that no batch explains: high learning rates that still learn have smaller ones.
UNEXPLAINED = 0.5
CLIP = "--train.clip 0.5, which limits the damage"


class LossSpike(Check):
    kind, description = "loss_spike", "the loss jumped"
    follows = ("foreign_writes", "exploding_gradients", "initial_loss")

    def on_step(self, step: TrainingStep) -> Findings:
        rise = spike([one.loss for one in self.run.history.steps[-WINDOW - 1 :]])
        if rise is None or self.run.model is None:
            return
        numbers = range(self.run.position - self.run.micro_batches, self.run.position)
        losses = {number: self._loss(number) for number in (*numbers, max(numbers[0] - 1, 0))}
        worst = max(numbers, key=lambda number: losses[number])
        usual = min(losses.values()) if len(losses) > 1 else 0.0
        evidence = f"the loss is {step.loss:.3f}, {rise:.2f} above all of the last {WINDOW}"
        if losses[worst] - usual > rise / 2:
            cause = f"this batch alone has a loss of {losses[worst]:.3f}: its text or its targets are unlike all others"
            changes = ["look at that batch", CLIP]
        elif rise < UNEXPLAINED:
            return
        else:
            cause = "the batch is like others, so the weights have moved too far: the learning rate is near its limit"
            changes = [self.run.lower_rate]
        yield self.finding(f"batch {worst}", evidence, cause, *changes)

    def on_records(self, records: Sequence[Record]) -> Findings:
        history, each = self.run.history, self.run.micro_batches
        for count, step in enumerate(history.steps, 1):
            rise = spike(history.losses[max(0, count - WINDOW - 1) : count])
            if rise is not None and rise > UNEXPLAINED:
                numbers = " or ".join(str((step.step - 1) * each + i) for i in range(each))
                evidence = f"at step {step.step} the loss is {step.loss:.3f}, {rise:.2f} above the ones logged before"
                cause = "its text or its targets are unlike all others, or the learning rate is near its limit"
                yield self.finding(f"batch {numbers}", evidence, cause, "look at that batch", CLIP)

    def _loss(self, number: int) -> float:
        """The mean loss of one batch."""
        run, batch = self.run, move(self.run.batch(number), self.run.device)
        if run.model is None or not run.usable(batch):
            return math.inf
        with evaluation_mode(run.model):
            term = next(iter(run.terms(batch).values()))
        return float(term.total) / max(float(term.count), 1.0)


def spike(losses: Sequence[float]) -> float | None:
    """How far the last loss is above the window before it, if that is more than they vary."""
    if len(losses) <= WINDOW:
        return None
    *before, last = losses[-WINDOW - 1 :]
    rise = last - max(before)
    if rise <= NATS:
        return None
    middle = statistics.median(before)
    spread = 1.4826 * statistics.median(abs(loss - middle) for loss in before)  # the deviation, if they are normal
    return rise if rise > SPREADS * spread else None
