"""Numbers unlike those of healthy runs, when no other check knows why."""

import statistics

from regard.doctor import Check, Findings, History
from regard.doctor.check import ANY
from regard.doctor.context import RECENT
from regard.doctor.reference import near, reference_at

#: Nats above the recorded loss; factors around the recorded gradient norm and update. Other seeds, rates and batch
#: sizes within the limits of a comparison stay within a third of these.
ABOVE, FACTOR = 0.4, 8.0
#: Steps after which a model must beat the frequencies of single tokens, and by how much, if the text has so much more
#: structure between neighbors; only if the loss has hardly fallen in the second half of them.
SETTLED, BETTER, STRUCTURE, FALLEN = 100, 0.05, 0.3, 0.02


class Unusual(Check):
    kind, description = "unusual", "the run is unlike healthy ones, and no check knows why"
    rank = 2
    follows = (ANY,)
    needs_confirmation = True

    def on_history(self, history: History) -> Findings:
        if len(history.steps) < 2 * RECENT or self.run.model is None:
            return
        yield from self._context_ignored(history.losses)
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

    def _context_ignored(self, losses: list[float]) -> Findings:
        """A loss that is no better than the frequencies of single tokens."""
        now, middle = (statistics.median(part[-RECENT:]) for part in (losses, losses[: len(losses) // 2]))
        if len(losses) < SETTLED or middle - now > FALLEN:
            return
        alone, neighbors = self.run.entropies
        if alone - neighbors > STRUCTURE and now > alone - BETTER:
            evidence = f"it stays at {now:.3f}; the frequencies of tokens give {alone:.3f}, of pairs {neighbors:.3f}"
            cause = "I do not know; the model learns how often tokens come, and nothing from the tokens before"
            change = "look at what the loss gets from the context: `regard look`"
            yield self.finding("the loss", evidence, cause, change)
