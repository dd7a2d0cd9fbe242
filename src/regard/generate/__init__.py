"""Decoding: greedy and sampled, streamed, for any model with ``start`` and ``step``; beam search for a source."""

from regard.generate.beam import Search, beam_search
from regard.generate.decode import Decoding, decode
from regard.generate.random import Draws
from regard.generate.sample_seq2seq import sample_seq2seq
from regard.generate.sampling import Sampling
from regard.generate.seq2seq import Hypothesis, Rules
from regard.generate.text import Prompt, Row, TextGenerator

__all__ = [
    "Decoding",
    "Draws",
    "Hypothesis",
    "Prompt",
    "Row",
    "Rules",
    "Sampling",
    "Search",
    "TextGenerator",
    "beam_search",
    "decode",
    "sample_seq2seq",
]
