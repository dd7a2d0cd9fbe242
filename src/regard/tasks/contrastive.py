"""The contrastive loss of images and texts (Radford et al. 2021, fig. 3), and what it is judged by: finding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data, ImageTextBatch
from regard.data.imagetext.data import ImageTextData
from regard.errors import UserError
from regard.models import PairEncoder
from regard.tasks.arrays import class_prediction
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term, with_auxiliary_losses
from regard.tasks.language import count_targets

TOP = 5
COUNTS = ("top1", "top5", "image_top5", "zero_shot")  # right answers, in this order; then two numbers of answers


@dataclass(frozen=True)
class ContrastiveConfig(TaskConfig, kind="contrastive"):
    """Give an image and its own text closer vectors than an image and another text of the batch."""

    trains, examples, unit = PairEncoder, ImageTextData, "image"
    over_ranks = True
    kinds_of_data = "images with texts: --data image-text"
    labels: tuple[str, ...] = option((), "the names of the classes, written by the run")
    languages: tuple[str, ...] = option((), "the languages of the texts, written by the run")

    def fit(self, data: Data) -> ContrastiveConfig:
        super().fit(data)
        assert isinstance(data, ImageTextData)
        return replace(self, labels=data.labels, languages=data.languages)

    def build(self) -> ContrastiveTask:
        return ContrastiveTask(self)


class ContrastiveTask(Measured[ContrastiveConfig], Predicting):
    """The mean of two cross entropies: the text of each image among all, and the image of each text.

    Hard negatives of a batch are further texts that no image of it has (Yuksekgonul et al. 2023, NegCLIP, sec. 4).
    Measures, among 100 candidates each: the share of images whose text is first (``top1``) or among the first five
    (``top5``), that of texts whose image is among the first five, and, with prompts, of images whose class is right.
    """

    best = "top5"

    def terms(self, model: PairEncoder, batch: ImageTextBatch) -> dict[str, Term]:
        return self._terms(model, batch)[0]

    def counts(self, batch: ImageTextBatch) -> dict[str, Tensor]:
        return {"contrastive": count_targets(batch.targets)}

    def _terms(self, model: PairEncoder, batch: ImageTextBatch) -> tuple[dict[str, Term], Tensor]:
        """The loss, and the vectors of images and texts [B, 2, D]."""
        vectors, further, details = with_auxiliary_losses(model, lambda: model(*batch.arguments))
        own = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        every, first = gathered(own) if model.training else (own, 0)  # evaluation has its own sets of candidates
        counted = batch.targets[:, 0] != IGNORE_INDEX
        target = torch.where(counted, first + torch.arange(len(own), device=own.device), IGNORE_INDEX)
        texts = every[:, 1]
        if batch.prompts is not None and batch.prompt_lengths is not None and batch.prompt_classes is None:
            negatives = model.text_vectors(batch.prompts, batch.prompt_lengths).to(own)
            texts = torch.cat((texts, gathered(negatives)[0] if model.training else negatives))
        total = sum(
            F.cross_entropy(rows @ columns.T, target, ignore_index=IGNORE_INDEX, reduction="sum")
            for rows, columns in ((own[:, 0], texts), (own[:, 1], every[:, 0]))
        )
        term = Term(total / 2, count_targets(batch.targets), additive=False, details=details)  # type: ignore[operator]
        return {"contrastive": term, **further}, own

    def measured(self, model: PairEncoder, batch: ImageTextBatch) -> tuple[dict[str, Term], Tensor]:
        terms, vectors = self._terms(model, batch)
        counted = batch.targets[:, 0] != IGNORE_INDEX
        scores = vectors[:, 0] @ vectors[:, 1].T  # [B, B]: images, texts
        own = scores.diagonal()[:, None]
        # Equal scores count as better ones, and NaN too, or a model that gives everything one vector would be perfect.
        ranks, image_ranks = ((~(some < own)).sum(1)[counted] - 1 for some in (scores, scores.T))
        right = [int(hits.sum()) for hits in (ranks < 1, ranks < TOP, image_ranks < TOP)]
        count, classified = int(counted.sum()), 0
        if batch.prompt_classes is not None:
            shares = self.class_shares(model, batch, vectors[:, 0])
            right.append(int((shares.argmax(1) == batch.targets[:, 0])[counted].sum()))
            classified = int((batch.targets[:, 0] >= 0)[counted].sum())
        sums = torch.zeros(max(1, len(self.config.languages)), len(COUNTS) + 2, dtype=torch.float64)
        sums[batch.language, : len(right)] = torch.tensor(right, dtype=torch.float64)
        sums[batch.language, len(COUNTS) :] = torch.tensor([count, classified], dtype=torch.float64)
        return terms, sums.flatten()

    def class_shares(self, model: PairEncoder, batch: ImageTextBatch, images: Tensor) -> Tensor:
        """The probability of each class for images [B, D], [B, classes]: that of all its prompts together."""
        prompts, lengths, classes = batch.prompts, batch.prompt_lengths, batch.prompt_classes
        assert prompts is not None
        assert lengths is not None
        assert classes is not None
        shares = (images.float() @ model.text_vectors(prompts, lengths).float().T).softmax(1)
        return shares.new_zeros(len(images), len(batch.names)).index_add(1, classes, shares)

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """Each measure; those of further languages that were evaluated have the language as a suffix."""
        found = {}
        names = self.config.languages or ("",)
        for number, row in enumerate(sums.view(len(names), -1).tolist()):
            *right, count, classified = row
            suffix = f"_{names[number]}" if number else ""
            for name, value in zip(COUNTS, right, strict=True):
                answers = classified if name == "zero_shot" else count
                if answers or (name == self.best and not number):
                    found[f"{name}{suffix}"] = value / max(answers, 1)
        return found

    def predictions(self, model: PairEncoder, batch: ImageTextBatch) -> list[Prediction]:
        """The most likely of the prompts for each image, and the probabilities of all."""
        if batch.prompt_classes is None:
            raise UserError("there are no texts to choose from; give two or more: --prompt TEXT --prompt TEXT")
        shares = self.class_shares(model, batch, model(batch.inputs)[:, 0])
        return [class_prediction(batch.names, row) for row in shares.tolist()]


def gathered(own: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks, and the number of the first own one. Gradients flow to the ranks that the rows are from.

    The backward pass of a sum over ranks is such a sum: it adds what every rank's loss asks of a row.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return own, 0
    from torch.distributed.nn.functional import all_reduce

    first = distributed.get_rank() * len(own)
    after = (distributed.get_world_size() - 1) * len(own) - first
    return all_reduce(F.pad(own, (0, 0) * (own.ndim - 1) + (first, after))), first
