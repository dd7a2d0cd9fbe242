"""Byte pair encoding: starting from bytes, the most frequent pair of adjacent tokens is merged, repeatedly.

Sennrich et al. 2016 (arXiv:1508.07909), on bytes as in GPT-2. docs/tokenizers.md has it in plain Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from regard.data.tokenizers.base import LearnedTokenizerConfig
from regard.data.tokenizers.byte_level import ByteLevel
from regard.data.tokenizers.byte_tokens import ALPHABET, content
from regard.data.tokenizers.word_split import cut_words, regroup, slices, words_then_bytes
from regard.data.tokenizers.words import TWICE


@dataclass(frozen=True)
class BpeConfig(LearnedTokenizerConfig, kind="bpe"):
    """Byte-level BPE: tokens are frequent pieces of words."""

    def build(self, pieces: Iterable[str]) -> ByteLevel:
        """Learn the merges from the beginning of the text, deterministically."""
        from tokenizers import Tokenizer, models, trainers

        self.check()  # a config built in Python is not checked yet
        learner = Tokenizer.from_str(json.dumps(content([], words_then_bytes())))
        learner.model = models.BPE()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary, min_frequency=TWICE, initial_alphabet=list(ALPHABET), show_progress=False
        )
        learner.train_from_iterator(regroup(slices(self.beginning(pieces)), cut_words), trainer)
        return ByteLevel.of(learner)
