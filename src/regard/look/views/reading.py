"""A text as a model reads it: its tokens, its targets, and the losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.models.base import Encoder, LanguageModel, Model, Seq2SeqModel

if TYPE_CHECKING:
    from regard.data.base import Specials
    from regard.data.tokenizers import Tokenizer

JsonObject = dict[str, Any]

LONGEST = 8192  # tokens of a text
LOGITS = 2**23  # computed at a time
NO_TARGET = -100  # the target after the last token of a text


class Reading(NamedTuple):
    """One text, or a source and its translation."""

    inputs: Tensor  # [1, N]: the text, or the begin mark and the translation
    targets: Tensor  # [N]: the next token at each position
    source: Tensor | None = None  # [1, S]

    def features(self, model: Model) -> Tensor:
        """Everything but the head, [1, N, C]."""
        if self.source is None:
            assert isinstance(model, LanguageModel | Encoder)
            return model.features(self.inputs)
        assert isinstance(model, Seq2SeqModel)
        lengths = torch.tensor([self.source.shape[1]], device=self.source.device)
        return model.features(self.inputs, self.source, lengths)

    def losses(self, model: Model, features: Tensor) -> list[float | None]:
        """The cross entropy of each token in nats; None for the first token of a text, which is not predicted.

        Every token of a translation is predicted, and its end.
        """
        losses: list[float | None] = [None] if self.source is None else []
        for logits, targets in self.logits(model, features):
            part = F.cross_entropy(logits, targets, ignore_index=NO_TARGET, reduction="none")
            losses += part[targets != NO_TARGET].tolist()
        return losses

    def logits(self, model: Model, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [n, V] in float32 or better and targets [n], for some positions at a time."""
        rows = max(1, LOGITS // model.config.vocabulary)
        for part, targets in zip(features[0].split(rows), self.targets.split(rows), strict=True):
            logits = model.head(part)
            yield logits.to(torch.promote_types(logits.dtype, torch.float32)), targets


def mean(losses: Sequence[float | None]) -> float | None:
    """Nats per predicted token."""
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


def read(
    tokenizer: Tokenizer, specials: Specials | None, text: str, other: str | None, device: torch.device
) -> Reading:
    """A text for a language model, or a source (``text``) with its translation (``other``)."""
    ids = _encoded(tokenizer, text, "the text")
    if specials is None:
        if other is not None:
            raise UserError("this model reads one text and no translation; leave the second text out")
        tokens = torch.tensor(ids, device=device)
        return Reading(tokens[None], F.pad(tokens[1:], (0, 1), value=NO_TARGET))
    if other is None:
        raise UserError("this model reads a source and its translation; give the translation as the second text")
    target = _encoded(tokenizer, other, "the translation")
    return Reading(
        torch.tensor([[specials.begin, *target]], device=device),
        torch.tensor([*target, specials.end], device=device),
        torch.tensor([[*ids, specials.end]], device=device),
    )


def _encoded(tokenizer: Tokenizer, text: str, what: str) -> list[int]:
    if not text:
        raise UserError(f"{what} is empty; give at least one character")
    if len(text) > 64 * LONGEST:  # refused before tokenization: no token is that long on average
        raise UserError(f"{what} has {len(text):,} characters, more than {LONGEST:,} tokens; shorten it")
    ids = tokenizer.encode(text).tolist()
    if len(ids) > LONGEST:
        raise UserError(f"{what} has {len(ids):,} tokens, and the limit is {LONGEST:,}; shorten it")
    return ids


def token_texts(tokenizer: Tokenizer, specials: Specials | None, tokens: Sequence[int]) -> list[str]:
    r"""Each token as text; an incomplete UTF-8 character as ``\xe2``, special tokens in angle brackets."""
    marks = {} if specials is None else {specials.pad: "<pad>", specials.begin: "<begin>", specials.end: "<end>"}
    return [
        marks.get(token)
        or (tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace") if token < tokenizer.size else "")
        for token in tokens
    ]
