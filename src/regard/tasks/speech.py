"""Recognition of speech by connectionist temporal classification (Graves et al. 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, ArrayBatch, Data
from regard.data.signals.speech import SPACE, SpeechData
from regard.errors import UserError
from regard.models import ModelConfig, SignalConfig, SignalEncoder
from regard.nn.heads import TokenClassesHeadConfig
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term
from regard.tasks.labeled import outputs
from regard.tasks.language import count_targets

BLANK = "_"  # the class of a part that adds no character; it is the last one


@dataclass(frozen=True)
class SpeechTaskConfig(TaskConfig, kind="speech"):
    """Write what is said: each part of a sound is a character or a blank."""

    trains, examples, unit = SignalEncoder, SpeechData, "character"
    kinds_of_data = "texts: --data speech"
    alphabet: tuple[str, ...] = option((), "the characters, written by the run")

    def fit(self, data: Data) -> SpeechTaskConfig:
        """This task for the characters of ``data``."""
        super().fit(data)
        assert isinstance(data, SpeechData)
        return replace(self, alphabet=data.alphabet)

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with an output for each character, and for none."""
        assert isinstance(data, SpeechData)
        if not isinstance(model, SignalConfig):
            raise UserError(f"the task {self.kind} trains an encoder of signals, and this model is a {model.kind}")
        labels = (*data.alphabet, BLANK)
        return replace(model, head=TokenClassesHeadConfig(len(labels), labels))

    def build(self) -> SpeechTask:
        return SpeechTask(self)


class SpeechTask(Measured[SpeechTaskConfig], Predicting):
    """The negative logarithm of the probability of a text, summed over all ways to align it with the sound.

    A sound with fewer parts than characters has none: its loss is 0. Measures: the rates of wrong characters and words
    (edits for each given one), by greedy decoding, and ``recognized``, 1 less the first.
    """

    best = "recognized"

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        return self._outputs(model, batch)[0]

    def counts(self, batch: Any) -> dict[str, Tensor]:
        return {"character": count_targets(batch.targets)}

    def measured(self, model: Any, batch: Any) -> tuple[dict[str, Term], Tensor]:
        terms, logits, parts = self._outputs(model, batch)
        sums = torch.zeros(4, dtype=torch.float64)
        for found, row in zip(self.decoded(logits, parts), batch.targets.tolist(), strict=True):
            if row[0] == IGNORE_INDEX:
                continue
            given = self.text(number for number in row if number != IGNORE_INDEX)
            pairs = ((given, found), (given.split(SPACE), found.split()))
            sums += torch.tensor([number for one, other in pairs for number in (edits(one, other), len(one))])
        return terms, sums.to(logits.device)

    def metrics(self, sums: Tensor) -> dict[str, float]:
        wrong, characters, wrong_words, words = sums.tolist()
        rate = wrong / max(characters, 1)
        return {"recognized": 1 - rate, "character_errors": rate, "word_errors": wrong_words / max(words, 1)}

    def predictions(self, model: Any, batch: Any) -> list[Prediction]:
        """The text of each row."""
        _, logits, parts = self._outputs(model, batch)
        return [Prediction(text, {"text": text}) for text in self.decoded(logits, parts)]

    def _outputs(self, model: SignalEncoder, batch: ArrayBatch) -> tuple[dict[str, Term], Tensor, Tensor]:
        """The terms, the logits [B, N, classes] of the parts, and how many parts each sound has, [B]."""
        logits, further, details = outputs(model, batch.arguments)
        logits = logits[:, model.before :]
        lengths = (
            torch.full_like(batch.targets[:, 0], batch.inputs.shape[1]) if batch.lengths is None else batch.lengths
        )
        parts = model.config.embed.count(lengths)
        real = batch.targets != IGNORE_INDEX
        total = F.ctc_loss(
            logits.log_softmax(-1).transpose(0, 1),
            batch.targets.masked_fill(~real, 0),
            parts,
            real.sum(1),
            blank=len(self.config.alphabet),
            reduction="sum",
            zero_infinity=True,
        )
        return {"character": Term(total, count_targets(batch.targets), details=details), **further}, logits, parts

    def decoded(self, logits: Tensor, parts: Tensor) -> list[str]:
        """The texts of the likeliest class of each part: equal neighbors are one, blanks are nothing."""
        found = []
        for row, count in zip(logits.argmax(-1).tolist(), parts.tolist(), strict=True):
            path = row[:count]
            kept = [number for place, number in enumerate(path) if place == 0 or number != path[place - 1]]
            found.append(" ".join(self.text(number for number in kept if number < len(self.config.alphabet)).split()))
        return found

    def text(self, numbers: Any) -> str:
        """The characters with these numbers."""
        return "".join(self.config.alphabet[number] for number in numbers)


def edits(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements that turn one sequence into the other.

    >>> edits("kitten", "sitting")
    3
    """
    costs = list(range(len(other) + 1))
    for row, mine in enumerate(one, 1):
        before, costs[0] = costs[0], row
        for column, theirs in enumerate(other, 1):
            before, costs[column] = (
                costs[column],
                min(before + (mine != theirs), costs[column] + 1, costs[column - 1] + 1),
            )
    return costs[-1]
