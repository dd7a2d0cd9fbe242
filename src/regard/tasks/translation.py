"""Translation: the cross entropy of each target token, given the source and the previous target tokens."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from regard.config import option
from regard.data.base import PairBatch
from regard.models import Seq2SeqModel
from regard.tasks.base import Term
from regard.tasks.language import CrossEntropyConfig, count_targets, cross_entropy_terms


@dataclass(frozen=True)
class TranslationConfig(CrossEntropyConfig, kind="translation"):
    """Predict each next token of the translation (teacher forcing)."""

    trains = Seq2SeqModel
    smoothing: float = option(0.1, "label smoothing, in training only", least=0, below=1)

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
        features = partial(model.features, batch.inputs, batch.source, batch.source_lengths)
        smoothing = self.config.smoothing if model.training else 0.0
        return cross_entropy_terms("next_token", model, features, batch.targets, self.config.logits, smoothing)

    def counts(self, batch: PairBatch) -> dict[str, Tensor]:
        """The number of targets."""
        return {"next_token": count_targets(batch.targets)}
