"""The tokens of many sentences, cached together with their tokenizer; and padded batches of them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config import dump
from regard.data.base import IGNORE_INDEX, PairBatch, Specials
from regard.data.origins.cache import cached
from regard.data.origins.progress import ProgressLine
from regard.data.tokenizers import Tokenizer, TokenizerConfig, load_tokenizer
from regard.errors import UserError

_FORMAT = "pairs 1"  # part of the key: change it when the format changes
_TOKENS, _COUNTS, _TOKENIZER = "tokens.npy", "counts.npy", "tokenizer.json"


class Encoded(NamedTuple):
    """Sentences as tokens, concatenated, without special tokens."""

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]  # [sentences]
    counts: NDArray[np.int64]  # [sentences]

    def pick(self, numbers: NDArray) -> "Encoded":
        """The sentences with these indices."""
        return Encoded(self.tokens, self.starts[numbers], self.counts[numbers])

    def rectangle(self, width: int) -> NDArray[np.int64]:  # [sentences, width]
        """The first ``width`` tokens of each; undefined after the end of a shorter one."""
        return self.tokens.take(self.starts[:, None] + np.arange(width), mode="clip").astype(np.int64)


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


def encode(
    lists: Sequence[Sequence[str]], learned_from: Iterable[str], config: TokenizerConfig, cache: Path
) -> tuple[Tokenizer, list[Encoded]]:
    """Each list of sentences as tokens of a tokenizer learned from ``learned_from``; cached."""
    learned_from = list(learned_from)
    key = json.dumps([_FORMAT, sorted(dump(config).items()), learned_from, *map(list, lists)])
    folder = cache / "pairs" / hashlib.sha256(key.encode()).hexdigest()[:32]
    sizes = [len(sentences) for sentences in lists]

    def write(made: Path) -> None:
        tokenizer = config.build(sentence + "\n" for sentence in learned_from)
        tokenizer.save(made / _TOKENIZER)
        ids = list(_ids(tokenizer, lists))
        np.save(made / _TOKENS, np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32))
        np.save(made / _COUNTS, np.array([len(sentence) for sentence in ids], dtype=np.int64))

    return cached(folder, cache, lambda folder: _open(folder, sizes), write)


def _ids(tokenizer: Tokenizer, lists: Sequence[Sequence[str]]) -> Iterator[NDArray[np.int64]]:
    with ProgressLine("tokenizing sentences", sum(len(text) for texts in lists for text in texts)) as progress:
        for texts in lists:
            for text in texts:
                yield tokenizer.encode(text)
                progress.advance(len(text))


def _open(folder: Path, sizes: Sequence[int]) -> tuple[Tokenizer, list[Encoded]] | None:
    """The content of a cache folder; None if it is missing or damaged."""
    try:
        tokenizer = load_tokenizer(folder / _TOKENIZER)
        tokens, counts = (np.load(folder / name, allow_pickle=False) for name in (_TOKENS, _COUNTS))
    except (OSError, ValueError, EOFError, UserError):
        return None
    if (tokens.ndim, counts.shape, counts.sum()) != (1, (sum(sizes),), len(tokens)):
        return None
    whole = Encoded(tokens, np.cumsum(counts) - counts, counts)
    stops = np.cumsum(sizes).tolist()
    return tokenizer, [whole.pick(np.arange(stop - size, stop)) for size, stop in zip(sizes, stops, strict=True)]
