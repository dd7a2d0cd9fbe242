"""Answers to generated problems: the cross entropy of their tokens, and the share that is right as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data, TextBatch
from regard.data.synthetic.data import SyntheticData
from regard.models import LanguageModel
from regard.tasks.base import Measured, Term
from regard.tasks.language import CrossEntropyConfig, count_targets, cross_entropy_terms


@dataclass(frozen=True)
class SolveConfig(CrossEntropyConfig, kind="solve"):
    """Answer generated problems; measured by answers that are right from the first token to the last."""

    trains, examples = LanguageModel, SyntheticData
    kinds_of_data = "generated problems: --data synthetic"
    longest: int = option(0, "tokens of the longest prompt in training, written by the run")
    longer: tuple[int, ...] = option((1,), "multiples of it that are measured apart, written by the run")

    def fit(self, data: Data) -> SolveConfig:
        super().fit(data)
        assert isinstance(data, SyntheticData)
        return replace(self, longest=data.longest, longer=tuple(sorted({1, *data.config.longer})))

    def build(self) -> SolveTask:
        return SolveTask(self)


class SolveTask(Measured[SolveConfig]):
    """Measures: accuracy, and the accuracy of prompts of at most once, twice, ... the longest trained one.

    The answer is predicted with the right tokens before each one, which is greedy decoding where all are right.
    """

    best = "accuracy"

    def terms(self, model: LanguageModel, batch: TextBatch) -> dict[str, Term]:
        """The term ``answer`` and, in training, auxiliary losses."""
        features = partial(model.features, batch.inputs, batch.slots)
        return cross_entropy_terms("answer", model, features, batch.targets, self.config.logits)

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        return {"answer": count_targets(batch.targets)}

    def measured(self, model: LanguageModel, batch: TextBatch) -> tuple[dict[str, Term], Tensor]:
        features, targets = model.features(batch.inputs, batch.slots), batch.targets
        terms = cross_entropy_terms("answer", model, lambda: features, targets, self.config.logits)
        counted = targets != IGNORE_INDEX
        right = ((model.head(features).argmax(-1) == targets) | ~counted).all(1)  # [B]
        prompts = counted.int().argmax(1) + 1  # tokens [B] up to the first one of the answer
        edges = torch.tensor([self.config.longest * times for times in self.config.longer], device=targets.device)
        bins = torch.bucketize(prompts, edges).clamp(max=len(edges) - 1)
        known = F.one_hot(bins, len(edges)) * counted.any(1)[:, None]
        return terms, torch.cat([(known * right[:, None]).sum(0), known.sum(0)])

    def metrics(self, sums: Tensor) -> dict[str, float]:
        right, count = sums.double().chunk(2)
        found = {"accuracy": float(right.sum() / count.sum().clamp(min=1))}
        if int((count > 0).sum()) > 1:
            shares = (right / count.clamp(min=1)).tolist()
            pairs = zip(self.config.longer, shares, count.tolist(), strict=True)
            found |= {f"accuracy_{times}x": share for times, share, number in pairs if number}
        return found
