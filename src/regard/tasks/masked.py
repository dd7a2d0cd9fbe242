"""Masked language modeling: predict tokens that were replaced in the input (Devlin et al. 2019, sec. 3.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import AnySlots, Packed, Padded, Slots
from regard.config import option
from regard.data.base import IGNORE_INDEX, TextBatch
from regard.errors import UserError
from regard.models import Encoder
from regard.tasks.base import Term
from regard.tasks.language import CrossEntropyConfig, cross_entropy_terms


@dataclass(frozen=True)
class MaskedTokensConfig(CrossEntropyConfig, kind="masked"):
    """Predict masked tokens from both sides."""

    trains = Encoder
    share: float = option(0.15, "share of each sequence's tokens to predict", above=0, below=1)
    whole_words: bool = option(False, "mask all tokens of a word or none; needs --data.words true")

    def build(self) -> "MaskedTokens":
        """The task."""
        return MaskedTokens(self)


class MaskedTokens:
    """The cross-entropy of the chosen tokens in nats.

    Of these, 80 % are replaced by the mask token, 10 % by a random token, and 10 % stay. A sequence of n tokens has
    exactly max(1, round(share · n)) of them or, of whole words, as many as fit into that number, so the batch alone
    gives the count. The choice is a hash of the sequence: it does not depend on the other rows, on the number of
    processes or on where a run was resumed.
    """

    def __init__(self, config: MaskedTokensConfig | None = None):
        self.config = config or MaskedTokensConfig()

    def terms(self, model: Encoder, batch: TextBatch) -> dict[str, Term]:
        """The term `masked_token` and, in training, the model's auxiliary losses."""
        tokens = batch.inputs
        if not model.predicts_tokens:
            raise UserError(
                f"a {type(model).__name__} with this head predicts no tokens; choose one with a head for them"
            )
        _, kind, other = _draws(tokens, model.config.vocabulary)
        most = max(1, round(self.config.share * tokens.shape[1]))
        order = self._order(batch)
        chosen = order[:, :most]  # [B, M]
        used = torch.arange(chosen.shape[1], device=tokens.device) < self._numbers(batch, order)[:, None]
        original, kind = tokens.gather(1, chosen), kind.gather(1, chosen)
        replaced = torch.where(kind < 0.8, model.mask_token, torch.where(kind < 0.9, other.gather(1, chosen), original))
        inputs = tokens.scatter(1, chosen, torch.where(used, replaced, original))
        targets = original.masked_fill(~used, IGNORE_INDEX)

        def features() -> Tensor:
            found = model.features(inputs, batch.slots)
            return found.gather(1, chosen[:, :, None].expand(-1, -1, found.shape[2]))

        return cross_entropy_terms("masked_token", model, features, targets, self.config.logits)

    def counts(self, batch: TextBatch) -> dict[str, Tensor]:
        """How many tokens of the batch are predicted."""
        return {"masked_token": self._numbers(batch, self._order(batch) if self.config.whole_words else None).sum()}

    def _order(self, batch: TextBatch) -> Tensor:
        """The places of each row in the order in which they are chosen, [B, N]; those of a word follow each other."""
        scores, _, _ = _draws(batch.inputs, 1)
        if self.config.whole_words:
            if batch.words is None:
                raise UserError("--task.whole_words needs the words of the text; add --data.words true")
            scores = scores.gather(1, batch.words)  # all tokens of word number w have the score of place w
        return scores.masked_fill(~real_tokens(batch.inputs, batch.slots), torch.inf).argsort(dim=1, stable=True)

    def _numbers(self, batch: TextBatch, order: Tensor | None) -> Tensor:
        """How many tokens of each row are predicted, [B]; whole words if one fits into the share."""
        length = real_tokens(batch.inputs, batch.slots).sum(1)
        most = (length.double() * self.config.share).round().long().clamp(min=1).minimum(length)
        if not self.config.whole_words or order is None or batch.words is None:
            return most
        words = batch.words.gather(1, order)
        last = torch.ones_like(words, dtype=torch.bool)
        last[:, :-1] = words[:, :-1] != words[:, 1:]  # a word ends here
        place = torch.arange(1, words.shape[1] + 1, device=words.device)
        fitting = (place * (last & (place <= most[:, None]))).amax(1)
        return torch.where(fitting > 0, fitting, most)


def real_tokens(tokens: Tensor, slots: AnySlots | None) -> Tensor:
    """Where a row has a token rather than padding, [B, N]."""
    if isinstance(slots, Padded):
        return slots.filled()
    if isinstance(slots, Packed | Slots):
        return (slots.segment >= 0).expand_as(tokens)
    return torch.ones_like(tokens, dtype=torch.bool)


def _draws(tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each token [B, N]: a score to choose by, a number in [0, 1) for its replacement, and another token."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    row = (tokens * (place * 7919 + 104729)).sum(1, keepdim=True)  # the key of the sequence
    first, second, third = (hashed(row + place * 31 + salt * 65537) for salt in (1, 2, 3))
    return first / 2**31, second / 2**31, third % vocabulary


def hashed(x: Tensor) -> Tensor:
    """Integers spread over 0 ... 2³¹ - 1 (Knuth's multiplicative hash, twice)."""
    for _ in range(2):
        x = (x * 2654435761 + 40503) % 2**31
        x = x ^ (x >> 15)
    return x
