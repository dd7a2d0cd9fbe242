"""Image-text matching: whether a text is about an image, by a model that reads both (Kim et al. 2021, sec. 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.base import IGNORE_INDEX, ImageTextBatch
from regard.data.imagetext.data import ImageTextData
from regard.errors import UserError
from regard.models import OneStream
from regard.tasks.arrays import class_prediction
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term, with_auxiliary_losses
from regard.tasks.language import count_targets

CHOICES = 10  # texts of which one is right, in evaluation: each is a pass, so they are fewer than those of two towers


@dataclass(frozen=True)
class MatchingConfig(TaskConfig, kind="matching"):
    """Tell the text of an image from that of another image."""

    trains, examples, unit = OneStream, ImageTextData, "image"
    kinds_of_data = "images with texts: --data image-text"

    def build(self) -> MatchingTask:
        return MatchingTask(self)


class MatchingTask(Measured[MatchingConfig], Predicting):
    """The cross entropy of two pairs for each image: with its own text, and with that of the next image of the batch.

    Measures: the share of pairs that are judged right, and that of images whose own text has the highest score among
    those of the next ``CHOICES`` images.
    """

    best = "first_of_10"

    def terms(self, model: OneStream, batch: ImageTextBatch) -> dict[str, Term]:
        return self._terms(model, batch)[0]

    def counts(self, batch: ImageTextBatch) -> dict[str, Tensor]:
        return {"match": 2 * count_targets(batch.targets)}

    def _terms(self, model: OneStream, batch: ImageTextBatch) -> tuple[dict[str, Term], Tensor]:
        """The terms, and logits [2, B, 2] of right and of wrong pairs."""
        arguments = [torch.cat((x, y)) for x, y in zip(_paired(batch), _paired(batch, 1), strict=True)]
        logits, further, details = with_auxiliary_losses(model, lambda: model(*arguments))
        counted = (batch.targets[:, 0] != IGNORE_INDEX).repeat(2)
        right = torch.arange(len(logits), device=logits.device) < len(batch.targets)
        targets = right.long().where(counted, IGNORE_INDEX)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        term = Term(total, self.counts(batch)["match"], additive=False, details=details)
        return {"match": term, **further}, logits.unflatten(0, (2, -1))

    def measured(self, model: OneStream, batch: ImageTextBatch) -> tuple[dict[str, Term], Tensor]:
        terms, logits = self._terms(model, batch)
        counted = batch.targets[:, 0] != IGNORE_INDEX
        judged = torch.stack((logits[0].argmax(-1) == 1, logits[1].argmax(-1) == 0), dim=1)
        scores = [_score(pair) for pair in logits]
        scores += [_score(model(*_paired(batch, shift))) for shift in range(2, min(CHOICES, len(counted)))]
        first = torch.stack([scores[0] > other for other in scores[1:]]).all(0)
        sums = torch.stack((judged[counted].sum() / 2, (first & counted).sum(), counted.sum()))
        return terms, sums.double()

    def metrics(self, sums: Tensor) -> dict[str, float]:
        judged, first, count = sums.tolist()
        return {"matched": judged / max(count, 1), "first_of_10": first / max(count, 1)}

    def predictions(self, model: OneStream, batch: ImageTextBatch) -> list[Prediction]:
        """The likeliest of the prompts for each image, and the probabilities of all; of a class its best one's."""
        if batch.prompts is None or batch.prompt_lengths is None or batch.prompt_classes is None:
            raise UserError("there are no texts to choose from; give two or more: --prompt TEXT --prompt TEXT")
        found = []
        for image in batch.inputs:
            images = image.expand(len(batch.prompts), -1, -1, -1)
            scores = _score(model(images, batch.prompts, batch.prompt_lengths))
            best = scores.new_full((len(batch.names),), -torch.inf)
            best = best.scatter_reduce(0, batch.prompt_classes, scores, "amax")
            found.append(class_prediction(batch.names, best.softmax(0).tolist()))
        return found


def _paired(batch: ImageTextBatch, shift: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Each image with the text of the image that is so many rows further on."""
    assert batch.tokens is not None
    assert batch.lengths is not None
    return batch.inputs, batch.tokens.roll(-shift, 0), batch.lengths.roll(-shift, 0)


def _score(logits: Tensor) -> Tensor:
    """The log-odds of a match, [B], of logits [B, 2]."""
    return (logits[:, 1] - logits[:, 0]).float()
