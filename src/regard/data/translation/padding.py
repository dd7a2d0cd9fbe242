"""Sentences of different lengths as the rows of one batch, with marks where they begin and end."""

from __future__ import annotations

import numpy as np

from regard.data.batch import IGNORE_INDEX, PairBatch, Specials
from regard.data.translation.encoded_sentences import Encoded


def padded(source: Encoded, target: Encoded, specials: Specials, context: int) -> PairBatch:
    """These sentences and their translations, each cut to the context.

    A source that is cut keeps its end mark; a target that is cut has none to foretell. Without any sentence, a row
    that counts nothing: every rank needs a batch.
    """
    import torch  # here, so that reading a config needs no torch

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
