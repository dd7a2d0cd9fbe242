"""Numbers unlike those of healthy runs, when no other check knows why."""

import statistics

import torch
from torch import Tensor

from regard.data import TextData
from regard.doctor import Check, Findings, History, RecentBatches, TrainingRun
from regard.doctor.check import ANY
from regard.doctor.context import RECENT
from regard.doctor.reference import near, reference_at
from regard.tasks import LanguageConfig

#: Nats above the recorded loss; factors around the recorded gradient norm and update. Other seeds, rates and batch
#: sizes within the limits of a comparison stay within a third of these.
ABOVE, FACTOR = 0.4, 8.0
#: Steps after which a model must beat the frequencies of single tokens, and by how much, if the text has so much more
#: structure between neighbors; only if the loss has hardly fallen in the second half of them.
SETTLED, BETTER, STRUCTURE, FALLEN = 100, 0.05, 0.3, 0.02
PAIRS = 4  # sampled neighbors per possible pair, at least


class Unusual(Check):
    kind, description = "unusual", "the run is unlike healthy ones, and no check knows why"
    rank = 2
    follows = (ANY,)
    needs_confirmation = True

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._losses: list[float] = []

    def on_history(self, history: History) -> Findings:
        self._losses = history.losses
        if len(history.steps) < 2 * RECENT or self.run.model is None:
            return
        step = history.steps[-RECENT // 2].step
        found = reference_at(self.run.experiment, sum(p.numel() for p in self.run.model.parameters()), step)
        if found is None:
            return
        loss, norm = (statistics.median(part[-RECENT:]) for part in (history.losses, history.norms))
        update = statistics.median(history.updates) if history.updates else None
        like = f"a healthy run of {found.recipe} has"
        cause = "I do not know; something slows learning that no check looks for"
        change = "compare the run with `regard train` of the recipe, one difference at a time"
        if loss > found.loss + ABOVE:
            yield self.finding("the loss", f"{loss:.2f} at step {step}, where {like} {found.loss:.2f}", cause, change)
        elif not near(norm, found.norm, FACTOR):
            evidence = f"the norm is {norm:.3g} at step {step}, where {like} {found.norm:.3g}"
            yield self.finding("the gradient", evidence, "I do not know; gradients have another size", change)
        elif update and found.update and not near(update, found.update, FACTOR):
            evidence = f"an update is {update:.2g} of the weights, where {like} {found.update:.2g}"
            yield self.finding("the update", evidence, "I do not know; updates have another size", change)

    def on_batches(self, batches: RecentBatches) -> Findings:
        """A loss that is no better than the frequencies of single tokens."""
        losses = self._losses
        if len(losses) < SETTLED or not isinstance(self.run.data, TextData):
            return
        if not isinstance(self.run.experiment.task, LanguageConfig):
            return
        now, middle = (statistics.median(part[-RECENT:]) for part in (losses, losses[: len(losses) // 2]))
        rows = torch.cat([batch.inputs for batch in batches.batches.values()])
        alone, neighbors = token_entropies(rows, self.run.vocabulary)
        if alone - neighbors > STRUCTURE and now > alone - BETTER and middle - now < FALLEN:
            evidence = f"it stays at {now:.3f}; the frequencies of tokens give {alone:.3f}, of pairs {neighbors:.3f}"
            cause = "I do not know; the model learns how often tokens come, and nothing from the tokens before"
            yield self.finding(
                "the loss", evidence, cause, "look at what the loss gets from the context: `regard look`"
            )


def token_entropies(rows: Tensor, vocabulary: int) -> tuple[float, float]:
    """Nats per token of rows [B, N] from the frequencies of tokens, and of tokens given the one before.

    With the correction for small samples of Miller (1955); equal for too few tokens.
    """
    single = rows.unique(return_counts=True)[1]
    pairs = (rows[:, :-1] * vocabulary + rows[:, 1:]).unique(return_counts=True)[1]
    if int(pairs.sum()) < PAIRS * min(len(single), vocabulary) ** 2:
        return 0.0, 0.0
    alone, both = _entropy(single), _entropy(pairs)
    return alone, both - alone


def _entropy(counts: Tensor) -> float:
    total = int(counts.sum())
    return float(torch.special.entr(counts / total).sum()) + (len(counts) - 1) / (2 * total)
