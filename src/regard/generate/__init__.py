"""Decoding: greedy and sampled, streamed, for any model with ``start`` and ``step``; beam search for a source."""

from regard.generate.beam import Search, beam_search
from regard.generate.decode import Decoding, decode
from regard.generate.draws import Draws
from regard.generate.sampling import Sampling
from regard.generate.sourced import Hypothesis, Rules
from regard.generate.walk import walk
from regard.generate.write import Author, Prompt, Row

__all__ = [
    "Author",
    "Decoding",
    "Draws",
    "Hypothesis",
    "Prompt",
    "Row",
    "Rules",
    "Sampling",
    "Search",
    "beam_search",
    "decode",
    "walk",
]
