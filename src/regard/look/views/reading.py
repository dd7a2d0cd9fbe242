"""A text as a model reads it: its tokens, its targets, and the losses; and the passage that heads are measured on."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from regard.data.base import Data, LabeledBatch
from regard.generate.sampling import in_float32
from regard.models.base import Encoder, LanguageModel, Model, Seq2SeqModel
from regard.runs.disk import JsonObject
from regard.tasks.masked import real_tokens

LOGITS = 2**23  # computed at a time
NO_TARGET = -100  # the target after the last token of a text


class Reading(NamedTuple):
    """One text, or a source and its translation."""

    inputs: Tensor  # [1, N]: the text, or the begin mark and the translation
    targets: Tensor  # [N]: the next token at each position; of an encoder, the token itself
    source: Tensor | None = None  # [1, S]

    @property
    def source_batch(self) -> tuple[Tensor, Tensor]:
        """The source [1, S] of a translation, and its length [1]."""
        assert self.source is not None
        return self.source, self.source.new_tensor([self.source.shape[1]])

    def features(self, model: Model) -> Tensor:
        """Everything but the head, [1, N, C]."""
        if self.source is None:
            assert isinstance(model, LanguageModel | Encoder)
            return model.features(self.inputs)
        assert isinstance(model, Seq2SeqModel)
        return model.features(self.inputs, *self.source_batch)

    def losses(self, model: Model, features: Tensor) -> list[float | None]:
        """The cross entropy of each token in nats; None for the first token that a language model reads.

        Every token of a translation is predicted, and its end; an encoder predicts each token that it sees.
        """
        losses: list[float | None] = [None] if self.targets[-1] == NO_TARGET else []
        for logits, targets in self.logits(model, features):
            part = F.cross_entropy(logits, targets, ignore_index=NO_TARGET, reduction="none")
            losses += part[targets != NO_TARGET].tolist()
        return losses

    def logits(self, model: Model, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [n, V] in float32 or better and targets [n], for some positions at a time."""
        rows = max(1, LOGITS // model.config.vocabulary)
        for part, targets in zip(features[0].split(rows), self.targets.split(rows), strict=True):
            yield in_float32(model.head(part)), targets


def mean(losses: Sequence[float | None]) -> float | None:
    """Nats per predicted token."""
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


def compare_losses(before: list[float | None], after: list[float | None]) -> JsonObject:
    """The losses of one text in two passes, in nats: as means, and token by token."""
    pairs = [list(pair) for pair in zip(before, after, strict=True)]
    return {"loss": {"before": mean(before), "after": mean(after)}, "per_token": pairs}


class Passage(NamedTuple):
    """Consecutive tokens of the data."""

    tokens: Tensor  # [N]
    held_out: bool  # False: there is no validation part, and the model was trained on these


def passage(data: Data, length: int, seed: int = 0) -> Passage:
    """The first ``length`` tokens of the validation part, or of a training window if there is none."""
    batch = next(iter(data.validation_batches(1)), None)
    if batch is None:
        return Passage(data.batch(0, seed=seed, size=1).inputs[0, :length], False)
    if isinstance(batch, LabeledBatch):  # its targets are labels
        return Passage(batch.inputs[0][real_tokens(batch.inputs, batch.slots)[0]][:length], True)
    real = batch.targets[0] >= 0  # the last row of a short text is padded
    return Passage(batch.inputs[0][real][:length], True)
