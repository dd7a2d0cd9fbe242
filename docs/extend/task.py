"""A task: next-token prediction with the focal loss, which lowers the weight of easy tokens (Lin et al. 2017, eq. 4).

regard train --with task.py --task focal --task.gamma 2
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data import IGNORE_INDEX, TextBatch
from regard.models import LanguageModel
from regard.tasks import TaskConfig, Term


class Focal:
    """-(1 - p)^gamma log p, summed over the targets."""

    def __init__(self, gamma: float):
        self.gamma = gamma

    def terms(self, model: LanguageModel, batch: TextBatch) -> dict[str, Term]:
        logits = model(batch.inputs, batch.slots).float().flatten(0, 1)
        targets = batch.targets.flatten()
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="none")  # [B * N]
        total = ((1 - torch.exp(-loss)) ** self.gamma * loss).sum()
        return {"focal": Term(total, self.counts(batch)["focal"])}

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        return {"focal": (batch.targets != IGNORE_INDEX).sum()}


@dataclass(frozen=True)
class FocalConfig(TaskConfig, kind="focal"):
    """Next-token prediction with the focal loss."""

    gamma: float = option(2.0, "how much easy tokens are discounted; 0 is the cross entropy")

    def build(self) -> Focal:
        return Focal(self.gamma)
