"""Translation: the cross entropy of each next token of the target, given the source and what came before it."""

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

    smoothing: float = option(0.1, "in training, this share of each target is spread over the whole vocabulary")
    logits: int = option(2**27, "how many logits may be held at once; more are computed in chunks of rows")

    def check(self) -> None:
        """Refuse what is no share, and a limit that no row fits."""
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, got {self.smoothing}")
        if self.logits < 1:
            raise ValueError(f"logits must be at least 1, got {self.logits}")

    def build(self) -> "Translation":
        """The task."""
        return Translation(self)


class Translation:
    """Cross entropy in nats, summed over the targets that count; smoothed in training only, so that the loss on
    held-out text stays a likelihood.

    The model gives features[B,T,C] = `model.features(inputs, source, source_lengths)` and `model.head(features)`.
    """

    def __init__(self, config: TranslationConfig | None = None):
        self.config = config or TranslationConfig()

    def terms(self, model: Seq2SeqModel, batch: PairBatch) -> dict[str, Term]:
        """The term `next_token` and, in training, what the model's layers add."""
        found, further, details = with_auxiliary_losses(
            model, lambda: model.features(batch.inputs, batch.source, batch.source_lengths)
        )
        features, targets = found.flatten(0, -2), batch.targets.flatten()  # [B*T,C], [B*T]
        smoothing = self.config.smoothing if model.training else 0.0
        vocabulary, limit = model.config.vocabulary, self.config.logits
        total = next_token_loss(model, features, targets, vocabulary, limit, smoothing)
        return {"next_token": Term(total, count_targets(targets), details=details), **further}

    def counts(self, batch: PairBatch) -> dict[str, Tensor]:
        """How many targets of the batch count."""
        return {"next_token": count_targets(batch.targets)}
