"""A text as a model reads it: its tokens, what it is to foretell, and how well it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer
    from regard.data.translation.pairs import Specials

LONGEST = 8192  # tokens of a text
LOGITS = 2**23  # held at a time
UNKNOWN = -100  # the target after the last token of a text


class Reading(NamedTuple):
    """One text, or a source and its translation. ``features`` and ``losses`` run the model on it."""

    inputs: Tensor  # [1, N], what goes in: the text, or the translation behind its begin mark
    targets: Tensor  # [N], what is foretold at each place
    source: Tensor | None = None  # [1, S]

    def features(self, model: Any) -> Tensor:
        """Everything but the head, [1, N, C]."""
        if self.source is None:
            return model.features(self.inputs)
        lengths = torch.tensor([self.source.shape[1]], device=self.source.device)
        return model.features(self.inputs, self.source, lengths)

    def losses(self, model: Any, features: Tensor) -> list[float | None]:
        """The cross entropy of each token in nats, in the order of the tokens; None for one that nothing foretells.

        A text's first token has nothing before it; of a translation every token is foretold, and its end.
        """
        found: list[float | None] = [None] if self.source is None else []
        for _, logits, targets in self.logits(model, features):
            losses = F.cross_entropy(logits, targets, ignore_index=UNKNOWN, reduction="none")
            found += losses[targets != UNKNOWN].tolist()
        return found

    def logits(self, model: Any, features: Tensor):
        """(first place, logits [n, V] in float32 or better, targets [n]) for some places at a time."""
        rows = max(1, LOGITS // model.config.vocabulary)
        for first, part in zip(range(0, features.shape[1], rows), features[0].split(rows), strict=True):
            logits = model.head(part)
            yield first, logits.to(torch.promote_types(logits.dtype, torch.float32)), self.targets[first : first + rows]


def mean(losses: Sequence[float | None]) -> float | None:
    """Nats per token that was foretold."""
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


def read(
    tokenizer: Tokenizer, specials: Specials | None, text: str, other: str | None, device: torch.device
) -> Reading:
    """A text for a language model, or a source (``text``) with its translation (``other``)."""
    ids = _encoded(tokenizer, text, "the text")
    if specials is None:
        if other is not None:
            raise UserError("this model goes on with one text and reads no pair; leave the second text out")
        tokens = torch.tensor(ids, device=device)
        return Reading(tokens[None], F.pad(tokens[1:], (0, 1), value=UNKNOWN))
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
    if len(text) > 64 * LONGEST:  # refused before it is read: no token is that long on average
        raise UserError(f"{what} has {len(text):,} characters, more than {LONGEST:,} tokens; shorten it")
    ids = tokenizer.encode(text).tolist()
    if len(ids) > LONGEST:
        raise UserError(f"{what} has {len(ids):,} tokens, and at most {LONGEST:,} are looked at; shorten it")
    return ids


def spelled(tokenizer: Tokenizer, specials: Specials | None, tokens: Sequence[int]) -> list[str]:
    r"""Each token as text; the part of a character as ``\xe2``, marks in angle brackets."""
    marks = {} if specials is None else {specials.pad: "<pad>", specials.begin: "<begin>", specials.end: "<end>"}
    size = tokenizer.size
    return [
        marks.get(token)
        or (tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace") if token < size else "")
        for token in tokens
    ]
