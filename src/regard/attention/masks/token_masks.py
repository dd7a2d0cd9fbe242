"""Masks that follow from the tokens: a label is computed for every token, and tokens with equal labels see each other.

A model binds them to its tokens in each forward pass (``Mask.bind``); while decoding, a cache holds the tokens so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.mask import Mask
from regard.attention.masks.tables import Same
from regard.attention.slots import Pairs
from regard.errors import UserError


class TokenMask(Mask):
    """Base class: a frozen dataclass with ``labels``."""

    needs_tokens = True

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        """Tokens [B, N] to labels [B, N], each from the tokens of its document up to its own.

        ``first`` [B|1, N] is the index at which each token's document begins.
        """
        raise NotImplementedError

    def bind(self, tokens: Tensor, phases: Tensor | None = None) -> Mask:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        return Same(self.labels(tokens, torch.zeros_like(index)[None] if phases is None else index - phases))

    def allows(self, pairs: Pairs) -> Tensor:
        raise UserError(f"{self} follows from the tokens and needs a model that reads them, such as gpt")


@dataclass(frozen=True)
class Spans(TokenMask):
    """Tokens of the same span, where a span ends with each token whose id is in ``ends``: a sentence, a document.

    >>> Spans((9,)).bind(torch.tensor([[1, 9, 2, 3, 9, 4]])).labels.tolist()
    [[0, 0, 1, 1, 1, 2]]
    """

    ends: tuple[int, ...]

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        end = _among(tokens, self.ends).long()
        return end.cumsum(1) - end


@dataclass(frozen=True)
class Tagged(TokenMask):
    """Tokens after the same tag: the latest token whose id is in ``tags``, such as the name of a speaker.

    >>> Tagged((7, 8)).bind(torch.tensor([[1, 7, 2, 8, 3, 7, 4]])).labels.tolist()
    [[-1, 7, 7, 8, 8, 7, 7]]
    """

    tags: tuple[int, ...]

    def labels(self, tokens: Tensor, first: Tensor) -> Tensor:
        index = torch.arange(tokens.shape[1], device=tokens.device)
        latest = torch.where(_among(tokens, self.tags), index, -1).cummax(1).values
        return torch.where(latest < first, -1, tokens.gather(1, latest.clamp(min=0)))


def _among(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    return torch.isin(tokens, torch.tensor(ids, dtype=tokens.dtype, device=tokens.device))
