"""A first loss that is not that of a uniform guess: untrained weights should not prefer any token."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.doctor import Check, Finding, Findings, SidePass
from regard.doctor.check import DEFINITIONS
from regard.doctor.context import Record
from regard.models import LanguageModel
from regard.tasks import LanguageConfig, MaskedTokensConfig, TranslationConfig
from regard.train import TrainingStep

#: Nats between the first loss and log V: logits of deviation s add s²/2, so this is s = 0.45. Every recipe is closer.
#: With few tokens chance is larger: the mean logit of the targets deviates by s/√V.
FAR, CHANCE = 0.1, 0.6
LARGE = 5.0  # the root mean square of activations; after a norm it is 1, with gains of GPT-2 after training below 5
TERMS = ("next_token", "masked_token", "loss")  # the first that a record has is the cross entropy


class InitialLoss(Check):
    kind, description = "initial_loss", "the first loss is not that of a uniform guess"
    follows = (DEFINITIONS,)

    def on_step(self, step: TrainingStep) -> Findings:
        if step.step == 1:  # its loss was computed before its update
            for finding in self._compare({"loss": step.loss, **step.terms}):
                yield from self._before_head() or [finding]

    def _before_head(self) -> list[Finding]:
        """A finding in the first block with large outputs, if what the head reads is large too."""
        model = self.run.model
        if not isinstance(model, LanguageModel) or not isinstance(self.run.experiment.task, LanguageConfig):
            return []
        side_pass = SidePass(self.run, self.run.batch(0))
        with side_pass.mode():
            size = rms(model.features(side_pass.tokens))
        blocks = {name for name, block in model.named_modules() if block in model.residual_blocks()}
        sizes = {name: rms(output) for name, output in side_pass.plain if name in blocks}
        where = next((name for name, own in sizes.items() if own > LARGE), None)
        if where is None or not size > LARGE:
            return []
        evidence = f"its outputs have a size of {sizes[where]:.3g}, and the head reads {size:.3g}, where norms give 1"
        cause = "activations grow from layer to layer: weights too large for them, or norms that are missing"
        return [self.finding(where, evidence, cause, "--model.norm rms", "smaller initial weights")]

    def on_records(self, records: Sequence[Record]) -> Findings:
        yield from (finding for one in records if one["step"] == 1 for finding in self._compare(one))

    def _compare(self, measured: Mapping[str, object]) -> Findings:
        if self.run.experiment.init is not None:
            return  # weights that were trained before
        loss = next((measured[name] for name in TERMS if name in measured), None)
        size, guess = self.run.vocabulary, math.log(max(self.run.vocabulary, 2))
        known = isinstance(self.run.experiment.task, LanguageConfig | MaskedTokensConfig | TranslationConfig)
        if (
            not known
            or not isinstance(loss, float)
            or not FAR + CHANCE / math.sqrt(size) < abs(loss - guess) < math.inf
        ):
            return
        evidence = f"it is {loss:.2f} before any update, and {guess:.2f} for equal probabilities of {size:,} tokens"
        cause = "the head, or the embedding tied to it, starts with weights that are too large"
        if loss < guess:
            cause = "the weights were trained before, or prefer some tokens from the start"
        change = (
            "initialize the head so that logits start near zero (standard deviation 0.02, or 1/√width after a norm)"
        )
        yield self.finding("the head", evidence, cause, change)


def rms(x: Tensor) -> float:
    """The root mean square."""
    return float(x.float().square().mean().sqrt())
