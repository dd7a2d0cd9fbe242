"""A check of `regard doctor`: the validation loss has hardly fallen between the first and the last evaluation.

regard train --with check.py --doctor
regard doctor --with check.py
"""

from regard.doctor import Check, Findings, History


class NoProgress(Check):
    """Compares the first and the last loss of the training."""

    kind, description = "no_progress", "the training makes no progress"

    def on_history(self, history: History) -> Findings:
        losses = history.losses
        if len(losses) > 4 and losses[-1] > 0.999 * losses[0]:
            evidence = f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
            yield self.finding("", evidence, "the learning rate is too low", "a higher --train.optimizer.lr")
