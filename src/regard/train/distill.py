"""Distillation: a model learns from the distribution of a trained one (Hinton et al. 2015)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data import TextBatch
from regard.data.base import IGNORE_INDEX
from regard.errors import UserError
from regard.generate.load import load
from regard.models import LanguageModel
from regard.tasks.base import Term, with_auxiliary_losses
from regard.tasks.language import CrossEntropyConfig, count_targets, summed_cross_entropy


@dataclass(frozen=True)
class DistillConfig(CrossEntropyConfig, kind="distill"):
    """Predict each next token, and the distribution that a trained model, the teacher, predicts."""

    trains = LanguageModel
    teacher: str = option("", "the folder of the teacher's run")
    temperature: float = option(2.0, "both distributions are softened by this temperature")
    share: float = option(0.5, "weight of the teacher's distribution; the text itself has the rest")
    hidden: float = option(0.0, "weight of the difference between the cosines of features, for every pair of tokens")

    def check(self) -> None:
        super().check()
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, not {self.share}")
        if self.hidden < 0:
            raise ValueError(f"hidden must be 0 or more, not {self.hidden}")

    def build(self) -> "DistillTask":
        return DistillTask(self)


class DistillTask:
    """(1 - share) cross entropy + share T² KL(teacher ‖ student), both at temperature T (Hinton et al. 2015, sec. 2).

    In evaluation the loss is the cross entropy alone, and the teacher is not needed.
    """

    def __init__(self, config: DistillConfig):
        self.config = config
        self._teacher: LanguageModel | None = None

    def terms(self, model: LanguageModel, batch: TextBatch) -> dict[str, Term]:
        """The term ``next_token`` and, in training, ``teacher``, ``features`` and auxiliary losses."""
        config = self.config
        x, further, details = with_auxiliary_losses(model, partial(model.features, batch.inputs, batch.slots))
        total = summed_cross_entropy(model, x.flatten(0, -2), batch.targets.flatten(), config.logits, 0.0)
        count = count_targets(batch.targets)
        if not model.training:
            return {"next_token": Term(total, count)}
        with torch.no_grad():
            teacher = self.teacher(model, x.device)
            wanted = teacher.features(batch.inputs, batch.slots)
            logits = teacher.head(wanted)
        found = {"next_token": Term(total, count, 1 - config.share, details=details), **further}
        real = batch.targets != IGNORE_INDEX
        divergence = softened_divergence(logits[real], model.head(x)[real], config.temperature)
        # Means, not sums: they are computed in training only, where every micro-batch has as many targets.
        found["teacher"] = Term(divergence, torch.ones_like(divergence), config.share, additive=False)
        if config.hidden:
            difference = cosine_difference(wanted, x)
            found["features"] = Term(difference, torch.ones_like(difference), config.hidden, additive=False)
        return found

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        """The number of targets."""
        return {"next_token": count_targets(batch.targets)}

    def teacher(self, student: LanguageModel, device: torch.device) -> LanguageModel:
        """The trained model, loaded on first use."""
        if self._teacher is None:
            if not self.config.teacher:
                raise UserError("distillation needs a teacher; give the folder of its run with --task.teacher RUN")
            loaded = load(Path(self.config.teacher), device).model
            if not isinstance(loaded, LanguageModel) or loaded.config.vocabulary != student.config.vocabulary:
                raise UserError(
                    f"{self.config.teacher} predicts other tokens than the student; distill with the teacher's own data"
                )
            self._teacher = loaded.requires_grad_(False)
        return self._teacher


def softened_divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over logits [R, V].

    The factor keeps the gradients as large as those of the cross entropy (Hinton et al. 2015, sec. 2.1).
    """
    p, q = (F.log_softmax(logits.float() / temperature, dim=-1) for logits in (teacher, student))
    return F.kl_div(q, p, reduction="batchmean", log_target=True) * temperature**2


def cosine_difference(teacher: Tensor, student: Tensor) -> Tensor:
    """The mean squared difference of the cosines between features [B, N, C] of tokens of a row; widths may differ.

    (Tung & Mori 2019, "Similarity-preserving knowledge distillation".)
    """
    a, b = (F.normalize(x.float(), dim=-1) for x in (teacher, student))
    return (a @ a.transpose(1, 2) - b @ b.transpose(1, 2)).square().mean()
