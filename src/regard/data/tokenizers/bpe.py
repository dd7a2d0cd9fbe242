"""Byte pair encoding: starting from bytes, the most frequent pair of adjacent tokens is merged, repeatedly.

Sennrich et al. 2016 (arXiv:1508.07909), on bytes as in GPT-2. docs/tokenizers.md has it in plain Python.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from regard.data.tokenizers.base import LearnedTokenizerConfig
from regard.data.tokenizers.byte_level import TWICE, ByteLevel, train
from regard.data.tokenizers.byte_tokens import ALPHABET


@dataclass(frozen=True)
class BpeConfig(LearnedTokenizerConfig, kind="bpe"):
    """Byte-level BPE: tokens are frequent pieces of words."""

    def build(self, pieces: Iterable[str]) -> ByteLevel:
        """Learn the merges from the beginning of the text, deterministically."""
        from tokenizers import models, trainers

        self.check()  # a config built in Python is not checked yet
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary, min_frequency=TWICE, initial_alphabet=list(ALPHABET), show_progress=False
        )
        return ByteLevel(json.loads(train(models.BPE(), trainer, self.beginning(pieces)).to_str()))
