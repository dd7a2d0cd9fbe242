"""Language modeling: the cross entropy of the next token."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.config import option
from regard.data.base import IGNORE_INDEX, TextBatch
from regard.models import LanguageModel, Model
from regard.tasks.base import TaskConfig, Term, with_auxiliary_losses


@dataclass(frozen=True)
class CrossEntropyConfig(TaskConfig):
    """A loss over the vocabulary."""

    logits: int = option(2**27, "the largest number of logits in memory; more are computed in chunks of rows", least=1)


@dataclass(frozen=True)
class LanguageConfig(CrossEntropyConfig, kind="language"):
    """Predict each next token."""

    trains = LanguageModel

    def build(self) -> "LanguageTask":
        """The task."""
        return LanguageTask(self)


class LanguageTask:
    """Cross entropy in nats, summed over the targets that are not IGNORE_INDEX."""

    def __init__(self, config: LanguageConfig | None = None):
        self.config = config or LanguageConfig()

    def terms(self, model: LanguageModel, batch: TextBatch) -> dict[str, Term]:
        """The term ``next_token`` and, in training, auxiliary losses."""
        features = partial(model.features, batch.inputs, batch.slots)
        return cross_entropy_terms("next_token", model, features, batch.targets, self.config.logits)

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        """The number of targets."""
        return {"next_token": count_targets(batch.targets)}


def cross_entropy_terms(
    name: str, model: Model, features: Callable[[], Tensor], targets: Tensor, limit: int, smoothing: float = 0.0
) -> dict[str, Term]:
    """The term ``name``, the cross entropy of features [..., C] and targets [...]; in training, auxiliary losses."""
    found, further, details = with_auxiliary_losses(model, features)
    total = summed_cross_entropy(model, found.flatten(0, -2), targets.flatten(), limit, smoothing)
    return {name: Term(total, count_targets(targets), details=details), **further}


def summed_cross_entropy(model: Model, features: Tensor, targets: Tensor, limit: int, smoothing: float) -> Tensor:
    """The summed cross entropy of features [R, C] and targets [R], with at most about ``limit`` logits in memory.

    ``smoothing``: label smoothing (Szegedy et al. 2016, sec. 7).
    """
    chunks = list(_in_chunks(model, features, targets, limit, smoothing, "sum"))
    return chunks[0] if len(chunks) == 1 else sum(chunks, start=features.new_zeros((), dtype=_wide(features.dtype)))


def token_losses(model: Model, features: Tensor, targets: Tensor, limit: int) -> Tensor:
    """The cross entropy of each target, [R]; 0 where it is IGNORE_INDEX."""
    return torch.cat(list(_in_chunks(model, features, targets, limit, 0.0, "none")))


def _in_chunks(
    model: Model, features: Tensor, targets: Tensor, limit: int, smoothing: float, reduction: str
) -> Iterator[Tensor]:
    """The cross entropy of chunks of rows.

    Logits and their log-softmax in float32 are by far the largest tensors of a small model with a large vocabulary:
    6.6 GB each for 32 x 1024 tokens of GPT-2. Above the limit, the head is applied to chunks of rows, which are
    recomputed in the backward pass.
    """
    rows = features.shape[0]
    chunks = min(-(-rows * model.config.vocabulary // limit), rows)
    if chunks <= 1:
        yield _cross_entropy(model, features, targets, smoothing, reduction)
        return
    size = -(-rows // chunks)
    for rows_RC, targets_R in zip(features.split(size), targets.split(size), strict=True):
        # The head uses no random numbers, so no generator state has to be preserved.
        yield checkpoint(
            _cross_entropy,
            model,
            rows_RC,
            targets_R,
            smoothing,
            reduction,
            use_reentrant=False,
            preserve_rng_state=False,
        )


def _cross_entropy(model: Model, features: Tensor, targets: Tensor, smoothing: float, reduction: str) -> Tensor:
    logits = model.head(features)
    logits = logits.to(_wide(logits.dtype))
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction=reduction, label_smoothing=smoothing)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a log-softmax in 16 bits is too coarse for training."""
    return torch.promote_types(dtype, torch.float32)


def count_targets(targets: Tensor) -> Tensor:
    """The number of targets that are not IGNORE_INDEX."""
    return (targets != IGNORE_INDEX).sum()
