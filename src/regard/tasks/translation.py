"""Translation: the cross entropy of each target token, given the source and the previous target tokens."""

from dataclasses import dataclass

from torch import Tensor

from regard.config import option
from regard.data.batch import PairBatch
from regard.models import Seq2SeqModel
from regard.tasks.base import TaskConfig, Term, with_auxiliary_losses
from regard.tasks.language import count_targets, next_token_loss


@dataclass(frozen=True)
class TranslationConfig(TaskConfig, kind="translation"):
    """Predict each next token of the translation (teacher forcing)."""

    smoothing: float = option(0.1, "label smoothing, in training only")
    logits: int = option(2**27, "the largest number of logits in memory; more are computed in chunks of rows")

    def check(self) -> None:
        """Refuse impossible values."""
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, got {self.smoothing}")
        if self.logits < 1:
            raise ValueError(f"logits must be at least 1, got {self.logits}")

    def build(self) -> "TranslationTask":
        """The task."""
        return TranslationTask(self)


class TranslationTask:
    """Cross entropy in nats, summed over the targets that are not IGNORE_INDEX.

    Labels are smoothed in training only, so that the validation loss is a likelihood.
    """

    def __init__(self, config: TranslationConfig | None = None):
        self.config = config or TranslationConfig()

    def terms(self, model: Seq2SeqModel, batch: PairBatch) -> dict[str, Term]:
        """The term ``next_token`` and, in training, auxiliary losses."""
        features, further, details = with_auxiliary_losses(
            model, lambda: model.features(batch.inputs, batch.source, batch.source_lengths)
        )
        features, targets = features.flatten(0, -2), batch.targets.flatten()  # [B*T,C], [B*T]
        smoothing = self.config.smoothing if model.training else 0.0
        vocabulary, limit = model.config.vocabulary, self.config.logits
        total = next_token_loss(model, features, targets, vocabulary, limit, smoothing)
        return {"next_token": Term(total, count_targets(targets), details=details), **further}

    def counts(self, batch: PairBatch) -> dict[str, Tensor]:
        """The number of targets."""
        return {"next_token": count_targets(batch.targets)}
