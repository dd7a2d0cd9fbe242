"""Decoding: greedy and sampled, streamed, for any model with ``start`` and ``step``."""

from regard.generate.decode import decode
from regard.generate.sampling import Sampling

__all__ = ["Sampling", "decode"]
