"""A first loss that is not that of a uniform guess: untrained weights should not prefer any token."""

import math
from collections.abc import Mapping, Sequence

from regard.doctor import Check, Findings
from regard.doctor.context import Record
from regard.tasks import LanguageConfig, MaskedTokensConfig, TranslationConfig
from regard.train import TrainingStep

#: Nats between the first loss and log V: logits of deviation s add s²/2, so this is s = 0.45. Every recipe is closer.
#: With few tokens chance is larger: the mean logit of the targets deviates by s/√V.
FAR, CHANCE = 0.1, 0.6
TERMS = ("next_token", "masked_token", "loss")  # the first that a record has is the cross entropy


class InitialLoss(Check):
    kind, description = "initial_loss", "the first loss is not that of a uniform guess"

    def on_step(self, step: TrainingStep) -> Findings:
        if step.step == 1:  # its loss was computed before its update
            yield from self._compare({"loss": step.loss, **step.terms})

    def on_records(self, records: Sequence[Record]) -> Findings:
        yield from (finding for one in records if one["step"] == 1 for finding in self._compare(one))

    def _compare(self, measured: Mapping[str, object]) -> Findings:
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
