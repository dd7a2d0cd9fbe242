"""Sentence pairs as a padded batch with begin and end tokens."""

from __future__ import annotations

import numpy as np

from regard.data.batch import IGNORE_INDEX, PairBatch, Specials
from regard.data.translation.encoded_sentences import Encoded


def padded(source: Encoded, target: Encoded, specials: Specials, context: int) -> PairBatch:
    """The batch of these sentences and translations, each truncated to the context.

    A truncated source keeps its end token; a truncated target has none. Without any sentence the batch is one row
    without targets, since every rank needs a batch.
    """
    import torch  # not at the top: configs are read without torch

    pad, begin, end = specials
    if not len(source.counts):
        rows = (np.array([[end]]), np.array([1]), np.array([[begin]]), np.array([[IGNORE_INDEX]]))
        return PairBatch(*map(torch.from_numpy, rows))
    counts = np.minimum(source.counts, context - 1)[:, None]
    place = np.arange(counts.max() + 1)
    sources = np.where(place < counts, source.rectangle(len(place)), np.where(place == counts, end, pad))
    lengths = counts[:, 0] + 1
    counts = target.counts[:, None]
    place = np.arange(min(int(counts.max()) + 1, context))
    tokens = target.rectangle(len(place))
    targets = np.where(place < counts, tokens, np.where(place == counts, end, IGNORE_INDEX))
    before = np.concatenate((np.full_like(counts, begin), tokens[:, :-1]), axis=1)
    inputs = np.where(place <= counts, before, pad)
    return PairBatch(*map(torch.from_numpy, (sources, lengths, inputs, targets)))
