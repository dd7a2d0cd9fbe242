"""The tokens of many sentences, made once and kept in the cache with the tokenizer that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.config import dump
from regard.data.origins.cache import partial_folder, settle_folder
from regard.data.origins.progress import ProgressLine
from regard.data.tokenizers import Tokenizer, TokenizerConfig, load_tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = "pairs 1"  # part of the key: change it when what is stored changes its meaning
_TOKENS, _COUNTS, _TOKENIZER = "tokens.npy", "counts.npy", "tokenizer.json"


class Encoded(NamedTuple):
    """Sentences as tokens, one after the other, without any marks."""

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]  # [sentences]
    counts: NDArray[np.int64]  # [sentences]

    def pick(self, numbers: NDArray) -> Encoded:
        """Those sentences."""
        return Encoded(self.tokens, self.starts[numbers], self.counts[numbers])

    def rectangle(self, width: int) -> NDArray[np.int64]:  # [sentences, width]
        """The first `width` tokens of each; what stands after the end of a shorter one means nothing."""
        return self.tokens.take(self.starts[:, None] + np.arange(width), mode="clip").astype(np.int64)


def encode(
    lists: Sequence[Sequence[str]], learned_from: Iterable[str], config: TokenizerConfig, cache: Path
) -> tuple[Tokenizer, list[Encoded]]:
    """Each list of sentences as tokens of a tokenizer made for `learned_from`; from the cache if it was made before."""
    learned_from = list(learned_from)
    question = json.dumps([_FORMAT, sorted(dump(config).items()), learned_from, *map(list, lists)])
    folder = cache / "pairs" / hashlib.sha256(question.encode()).hexdigest()[:32]
    sizes = [len(sentences) for sentences in lists]
    was_there = folder.exists()
    if (kept := _open(folder, sizes)) is None:
        with partial_folder(cache) as partial:
            if was_there and _open(folder, sizes) is None:  # damaged: out of the way
                with suppress(FileNotFoundError):
                    folder.rename(partial / "damaged")
            made = partial / "made"
            made.mkdir()
            tokenizer = config.build(sentence + "\n" for sentence in learned_from)
            tokenizer.save(made / _TOKENIZER)
            numbers = list(_numbers(tokenizer, lists))
            np.save(made / _TOKENS, np.concatenate([np.zeros(0, np.int32), *numbers]).astype(np.int32))
            np.save(made / _COUNTS, np.array([len(some) for some in numbers], dtype=np.int64))
            settle_folder(made, folder)
        kept = _open(folder, sizes)
    if kept is None:
        raise UserError(f"the tokens in {folder} cannot be read back; check that disk, or set REGARD_CACHE to another")
    return kept


def _numbers(tokenizer: Tokenizer, lists: Sequence[Sequence[str]]) -> Iterator[NDArray[np.int64]]:
    with ProgressLine("turning sentences into tokens", sum(len(text) for texts in lists for text in texts)) as progress:
        for texts in lists:
            for text in texts:
                yield tokenizer.encode(text)
                progress.advance(len(text))


def _open(folder: Path, sizes: Sequence[int]) -> tuple[Tokenizer, list[Encoded]] | None:
    """What the cache holds there; None if nothing, or nothing sound."""
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
