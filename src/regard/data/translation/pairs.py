"""Translation data: batches of sentence pairs. The batch of a step is a pure function of (seed, step, rank)."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import Data, DataConfig, PairBatch, Specials
from regard.data.origins.cache import cache_folder
from regard.data.origins.progress import say
from regard.data.sources import all_sources, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import BpeConfig, Tokenizer, TokenizerConfig
from regard.data.translation.encoded_sentences import Encoded, encode, padded
from regard.data.translation.length_buckets import LengthBuckets
from regard.data.translation.near_duplicates import near_once
from regard.data.translation.sentence_pairs import SentencePairs, read_pairs, read_table
from regard.errors import UserError

__all__ = ["PairData", "PairsConfig", "SentencePairs"]


class EncodedPairs(NamedTuple):
    """The pairs of a part, as text and as tokens."""

    pairs: SentencePairs
    source: Encoded
    target: Encoded

    def pick(self, numbers: NDArray) -> "EncodedPairs":
        """The pairs with these indices."""
        return EncodedPairs(self.pairs.pick(numbers.tolist()), self.source.pick(numbers), self.target.pick(numbers))

    @property
    def longer(self) -> NDArray[np.int64]:  # [pairs]
        """Tokens of the longer side, with the end token."""
        return np.maximum(self.source.counts, self.target.counts) + 1

    def buckets(self, context: int) -> LengthBuckets:
        """Batches of these pairs, truncated to the context."""
        sources, targets = (np.minimum(side.counts + 1, context) for side in (self.source, self.target))
        return LengthBuckets(sources, targets)


@dataclass(frozen=True)
class PairsConfig(DataConfig, kind="pairs"):
    """Sentences and their translations: a built-in source, or the user's own files."""

    path: str | None = option(
        None, "a file with a sentence, a tab and its translation per line; or NAME for the files NAME.en and NAME.fr"
    )
    validation_path: str | None = option(None, "the same for the validation part, instead of a fraction of the pairs")
    test_path: str | None = option(None, "the same for the test part, instead of a fraction of the pairs")
    source: str = option("homeassistant", "the pairs to fetch when no path is given; `regard data` lists them")
    languages: str = option("en-fr", "source and target language")
    tokenizer: TokenizerConfig = field(
        default_factory=BpeConfig, metadata={"help": "the tokenizer, shared by both languages"}
    )
    lower: bool = option(False, "lowercase all text")
    validation: float = option(0.05, "the fraction of the pairs held out for evaluation, in whole groups")
    test: float = option(0.05, "the fraction of the pairs held out for a final test, in whole groups")
    near: float = option(80.0, "drop held-out pairs whose source has a higher chrF with one in training; 100: none")
    batch: int = option(2048, "tokens per micro-batch on either side at most, padding included")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        if not 0 <= self.near <= 100:
            raise ValueError(f"near is {self.near}, but chrF is at least 0 and at most 100")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but a step needs at least 1 token")
        names = self.languages.split("-")
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise ValueError(f"languages is '{self.languages}', but should name two, such as en-fr")
        if self.path is None:
            self._check_source(names)

    def _check_source(self, names: list[str]) -> None:
        known = find_source(self.source).languages
        if not known:
            with_pairs = ", ".join(name for name, source in all_sources().items() if source.languages)
            raise ValueError(
                f"source '{self.source}' is a text and not pairs (--data text); with pairs are: {with_pairs}"
            )
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"languages: '{self.source}' has no '{unknown[0]}'; it has {', '.join(known)}")

    def build(self, context: int, cache: Path | None = None) -> "PairData":
        """Fetch, split and tokenize the pairs; downloads and tokens are cached."""
        self.check()  # a config made in Python was not loaded
        cache = cache or cache_folder()
        name = f"{self.path or self.source} {self.languages}"
        everything = self._read(self.path, cache)
        paths = (self.validation_path, self.test_path)
        validation, test = (None if path is None else self._read(path, cache) for path in paths)
        sha256 = hashlib.sha256(json.dumps([everything, validation, test]).encode()).hexdigest()
        division = divide(everything.groups, 0 if validation else self.validation, 0 if test else self.test)
        train, *held_out = (everything.pick(numbers) for numbers in division)
        if not train.count:
            raise UserError(
                f"all pairs of {name} are of {len(set(everything.groups))} group(s), which the held-out parts take; "
                "set --data.validation and --data.test to 0, or give more groups"
            )
        parts = self._without_near([train, validation or held_out[0], test or held_out[1]], name, cache)
        learned_from = chain.from_iterable(zip(parts[0].sources, parts[0].targets, strict=True))
        texts = [texts for part in parts for texts in (part.sources, part.targets)]
        tokenizer, encoded = encode(texts, learned_from, self.tokenizer, cache)
        sides = [EncodedPairs(part, *encoded[2 * number : 2 * number + 2]) for number, part in enumerate(parts)]
        data = PairData(sides, tokenizer, context, lower=self.lower, name=name, sha256=sha256)
        if self.batch < data.smallest_batch:
            raise UserError(
                f"a batch of {self.batch} tokens is too small for the longest pair of {name}; set --data.batch to "
                f"{data.smallest_batch} or more, or a smaller --model.context"
            )
        return data

    def _read(self, path: str | None, cache: Path) -> SentencePairs:
        """The pairs of a path, or of the source without one."""
        languages = self.languages.split("-")
        if path is None:
            pairs = read_table(find_source(self.source).fetch(cache), *languages)
        else:
            pairs = read_pairs(path, *languages)
        if not self.lower:
            return pairs
        sources, targets = ([text.lower() for text in side] for side in (pairs.sources, pairs.targets))
        return pairs._replace(sources=sources, targets=targets)

    def _without_near(self, parts: list[SentencePairs], name: str, cache: Path) -> list[SentencePairs]:
        """The same parts without held-out pairs whose source is a near-duplicate of one in a previous part."""
        if self.near == 100:  # chrF is never above
            return parts
        kept, known = [parts[0]], parts[0].sources
        for part in parts[1:]:
            dropped = near_once(part.sources, known, self.near, cache)
            kept.append(part.pick(np.flatnonzero(~dropped).tolist()))
            known = known + kept[-1].sources
        before, after = (" and ".join(f"{part.count:,}" for part in some[1:]) for some in (parts, kept))
        if before != after:
            say(
                f"{name}: of {before} pairs for validation and test {after} are kept; the sources of the others are "
                f"nearly those of another part (chrF above {self.near:g}, --data.near)"
            )
        return kept


class PairData(Data[PairBatch]):
    """Pairs in three parts, as text and as batches."""

    tokenizer: Tokenizer
    specials: Specials
    vocabulary: int
    sha256: str
    validation_count: int
    test_count: int
    dynamic_shapes = True

    def __init__(
        self, parts: list[EncodedPairs], tokenizer: Tokenizer, context: int, *, lower: bool, name: str, sha256: str
    ) -> None:
        """`parts`: train, validation, test."""
        self.tokenizer = tokenizer
        self.specials = Specials.after(tokenizer.size)
        self.vocabulary = tokenizer.size + len(self.specials)
        self.context, self.lower = context, lower
        self.name, self.sha256 = name, sha256
        if context < 2:
            raise UserError(f"the context is {context}, but a sentence needs at least 2: a token and the end token")
        self._train, self._validation, self._test = _fitting(parts[0], context, name), *parts[1:]
        self.train, self.validation, self.test = self._train.pairs, self._validation.pairs, self._test.pairs
        if long := sum(int((part.longer > context).sum()) for part in parts[1:]):
            say(f"{name}: {long:,} held-out pairs are longer than {context} tokens and truncated")
        self._buckets = self._train.buckets(context)
        self.smallest_batch = int(self._train.longer.max())
        self.validation_count, self.test_count = (
            int(np.minimum(part.target.counts + 1, context).sum()) for part in parts[1:]
        )

    def epoch(self, size: int, world: int = 1) -> int:
        """Number of steps in which every pair is seen once."""
        return len(self._buckets.cuts(size * world)) - 1

    def encode_source(self, text: str) -> list[int]:
        """The tokens of a source sentence, with the end token."""
        return [*self.tokenizer.encode(text.lower() if self.lower else text).tolist(), self.specials.end]

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> PairBatch:
        """Part ``rank`` of the training batch of a step: pairs with about ``size`` tokens on either side, with padding.

        The parts are equal parts of one batch of at most ``size * world`` tokens; one may have a pair more
        than fits into ``size``, or none. In an epoch (``epoch(size, world)`` steps) every pair occurs once.
        """
        numbers = self._buckets.rows(step, seed=seed, rank=rank, world=world, size=size)
        return self._batch(self._train, numbers)

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[PairBatch]:
        """The validation part: over all ranks every pair exactly once, short ones first.

        The ranks' batches together have at most ``size * world`` tokens on either side, or are a single pair. Every
        rank gets the same number of batches; some may be an empty pair without targets.
        """
        return self._batches(self._validation, size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[PairBatch]:
        """The test part, in the same way."""
        return self._batches(self._test, size, rank, world)

    def _batches(self, part: EncodedPairs, size: int, rank: int, world: int) -> Iterator[PairBatch]:
        for numbers in part.buckets(self.context).in_order(size, rank, world):
            yield self._batch(part, numbers)

    def _batch(self, part: EncodedPairs, numbers: NDArray[np.int64]) -> PairBatch:
        return padded(part.source.pick(numbers), part.target.pick(numbers), self.specials, self.context)


def _fitting(part: EncodedPairs, context: int, name: str) -> EncodedPairs:
    """The pairs that fit into the context."""
    fits = part.longer <= context
    if not fits.any():
        raise UserError(
            f"no pair of {name} fits into a context of {context} tokens; the shortest has {part.longer.min()}: set "
            "--model.context to more"
        )
    if long := int((~fits).sum()):
        say(f"{name}: {long:,} of {len(fits):,} pairs are longer than {context} tokens and not trained on")
    return part.pick(np.flatnonzero(fits))
