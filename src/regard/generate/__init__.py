"""Decoding: greedy and sampled, streamed, for any model with ``start`` and ``step``."""

from regard.generate.decode import Decoding, decode
from regard.generate.draws import Draws
from regard.generate.sampling import Sampling
from regard.generate.write import Author, Prompt, Row

__all__ = ["Author", "Decoding", "Draws", "Prompt", "Row", "Sampling", "decode"]
