"""The most frequent words are tokens; other words are encoded as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from regard.data.tokenizers.base import BYTES, LearnedTokenizerConfig
from regard.data.tokenizers.byte_level import ByteLevel
from regard.data.tokenizers.byte_tokens import SINGLES, content, unwritten
from regard.data.tokenizers.word_split import cut_words, regroup, slices, words_then_bytes

TWICE = 2  # the least number of occurrences of a token


@dataclass(frozen=True)
class WordsConfig(LearnedTokenizerConfig, kind="words"):
    """The most frequent words, with their preceding space, and runs of other characters and of whitespace."""

    def build(self, pieces: Iterable[str]) -> ByteLevel:
        """Count the words at the beginning of the text; ties are in alphabetical order."""
        from tokenizers import Tokenizer, models, trainers

        self.check()  # a config built in Python is not checked yet
        frame = content([], words_then_bytes())
        counter = Tokenizer.from_str(json.dumps(frame))
        counter.model = models.WordLevel({}, unk_token="")
        trainer = trainers.WordLevelTrainer(vocab_size=self.vocabulary, min_frequency=TWICE, show_progress=False)
        counter.train_from_iterator(regroup(slices(self.beginning(pieces)), cut_words), trainer)
        numbers = counter.get_vocab()
        words = [unwritten(word) for word in sorted(numbers, key=numbers.__getitem__) if len(word) > 1]
        return ByteLevel(content([*SINGLES, *words[: self.vocabulary - BYTES]], words_then_bytes()))
