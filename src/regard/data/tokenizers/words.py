"""The most frequent words are tokens; other words are encoded as bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from regard.data.tokenizers.base import BYTES, LearnedTokenizerConfig
from regard.data.tokenizers.byte_level import TWICE, ByteLevel, train
from regard.data.tokenizers.byte_tokens import SINGLES, content, unwritten
from regard.data.tokenizers.word_split import WORDS_THEN_BYTES


@dataclass(frozen=True)
class WordsConfig(LearnedTokenizerConfig, kind="words"):
    """The most frequent words, with their preceding space, and runs of other characters and of whitespace."""

    def build(self, pieces: Iterable[str]) -> ByteLevel:
        """Count the words at the beginning of the text; ties are in alphabetical order."""
        from tokenizers import models, trainers

        self.check()  # a config built in Python is not checked yet
        trainer = trainers.WordLevelTrainer(vocab_size=self.vocabulary, min_frequency=TWICE, show_progress=False)
        numbers = train(models.WordLevel({}, unk_token=""), trainer, self.beginning(pieces)).get_vocab()
        words = [unwritten(word) for word in sorted(numbers, key=numbers.__getitem__) if len(word) > 1]
        return ByteLevel(content([*SINGLES, *words[: self.vocabulary - BYTES]], WORDS_THEN_BYTES))
