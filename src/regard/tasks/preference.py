"""Direct preference optimization: a policy that prefers what people preferred, without a reward model.

Rafailov et al. (2023) derive that the reward whose optimal policy is π under a KL penalty β against a reference is
r(x, y) = β log π(y|x) / π_ref(y|x), up to a function of x. Maximum likelihood of the preferences is then equation 7:

    L = -log σ(β [log π(y_w|x) / π_ref(y_w|x) - log π(y_l|x) / π_ref(y_l|x)])

with the preferred answer y_w and the rejected one y_l.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, PreferenceBatch
from regard.models import LanguageModel
from regard.tasks.base import Measured, Term
from regard.tasks.language import CrossEntropyConfig, token_losses


@dataclass(frozen=True)
class PreferenceTaskConfig(CrossEntropyConfig, kind="dpo"):
    """Prefer one answer to another (DPO)."""

    trains = LanguageModel
    beta: float = option(0.1, "strength of the penalty for leaving the model before tuning", above=0)

    def build(self) -> "PreferenceTask":
        """The task."""
        return PreferenceTask(self)


class PreferenceTask(Measured[PreferenceTaskConfig]):
    """The loss of equation 7, summed over the pairs of a batch."""

    best = "accuracy"

    def __init__(self, config: PreferenceTaskConfig | None = None):
        super().__init__(config or PreferenceTaskConfig())

    def terms(self, model: LanguageModel, batch: PreferenceBatch) -> dict[str, Term]:
        """The term ``preference``."""
        return self._terms(self.margins(model, batch), batch)

    def counts(self, batch: PreferenceBatch) -> dict[str, Tensor]:
        """The number of pairs."""
        return {"preference": real_pairs(batch).sum()}

    def measured(self, model: LanguageModel, batch: PreferenceBatch) -> tuple[dict[str, Term], Tensor]:
        """The terms, and how many pairs there are, how many are ranked right, and the sum of their margins."""
        margins, real = self.margins(model, batch), real_pairs(batch)
        statistics = torch.stack((real.sum(), ((margins > 0) & real).sum(), (margins * real).sum().detach()))
        return self._terms(margins, batch), statistics

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """The share of pairs whose preferred answer has the larger reward, and the mean difference of the rewards."""
        pairs, right, margin = sums.tolist()
        return {"accuracy": right / max(1.0, pairs), "margin": margin / max(1.0, pairs)}

    def margins(self, model: LanguageModel, batch: PreferenceBatch) -> Tensor:
        """r(x, y_w) - r(x, y_l) of each pair, [B]."""
        rewards = self.config.beta * (log_probabilities(model, batch, self.config.logits) - batch.reference)
        return rewards[0::2][: len(rewards) // 2] - rewards[1::2]  # the doctor may take an odd number of rows

    def _terms(self, margins: Tensor, batch: PreferenceBatch) -> dict[str, Term]:
        real = real_pairs(batch)
        return {"preference": Term((-F.logsigmoid(margins) * real).sum(), real.sum())}


def log_probabilities(model: LanguageModel, batch: PreferenceBatch, limit: int) -> Tensor:
    """log π(y|x) of each answer, [2B]: the sum over its tokens. Padding comes last, where it is not seen."""
    features = model.features(batch.inputs)
    losses = token_losses(model, features.flatten(0, -2), batch.targets.flatten(), limit)
    return -losses.view_as(batch.targets).sum(1)


def real_pairs(batch: PreferenceBatch) -> Tensor:
    """Which pairs have targets, [B]: the last batch of an evaluation may be filled up."""
    return (batch.targets[0::2][: len(batch.targets) // 2] != IGNORE_INDEX).any(1)
