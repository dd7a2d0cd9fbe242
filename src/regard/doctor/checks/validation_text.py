"""Validation text whose tokens have other numbers than those of the training text."""

import math
from itertools import islice

import torch
from torch import Tensor

from regard.data import TextData
from regard.doctor import Check, Findings, RecentBatches, TrainingRun

#: Half the sum of differences between two distributions of tokens: passages of one text have at most twice what chance
#: gives for so many tokens, and this. With other numbers for the same tokens it is far more, and sorted by frequency
#: the distributions agree: they differ by less than this share of it.
APART, ALIKE = 0.15, 0.5
TOKENS = 2000  # of either part, at least


class ValidationText(Check):
    kind, description = "validation_text", "validation and training have different token numbers"
    rank = 0

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._validation: Tensor | None = None  # how often each token comes

    def on_batches(self, batches: RecentBatches) -> Findings:
        data = self.run.data
        if not isinstance(data, TextData) or not data.parts.validation.size:
            return
        if self._validation is None:
            found = [
                b.inputs.flatten() for b in islice(data.validation_batches(16), max(1, TOKENS // data.context // 4))
            ]
            self._validation = torch.cat(found).bincount(minlength=self.run.vocabulary).double()
        trained = torch.cat([batch.inputs.flatten() for batch in batches.batches.values()])
        counts = trained.clamp(min=0).bincount(minlength=self.run.vocabulary).double(), self._validation
        if len(counts[0]) != len(counts[1]) or min(float(count.sum()) for count in counts) < TOKENS:
            return
        one, other = (count / count.sum() for count in counts)
        apart, sorted_apart = (
            float((x - y).abs().sum()) / 2 for x, y in ((one, other), (one.sort()[0], other.sort()[0]))
        )
        sizes = sum(1 / float(count.sum()) for count in counts)
        chance = float((one * sizes * 2 / math.pi).sqrt().sum()) / 2  # the mean of |x - y| of two normal deviates
        if apart > 2 * chance + APART and sorted_apart < ALIKE * apart:
            evidence = f"their tokens differ by {apart:.0%}, and sorted by frequency by {sorted_apart:.0%}"
            cause = "the two parts were tokenized with different tables: the same text has other numbers"
            yield self.finding("validation", evidence, cause, "encode both parts with the tokenizer of the run")
