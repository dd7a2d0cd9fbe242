"""Draws: the random numbers that decide samples, as a function of (seed, stream, position) and nothing else.

Philox 4x64 (Salmon et al. 2011) is keyed with the seed and the stream's number; the p-th number it gives decides the
p-th token. So a text is the same alone, in a batch, and whatever its place there is, on every device. NumPy keeps the
raw numbers of its bit generators the same from release to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCK = 256  # positions drawn at once: one copy to the device for so many tokens


class Draws(NamedTuple):
    """What choosing a token reads and moves on, at fixed addresses on the device."""

    noise: Tensor  # [B, BLOCK], numbers for the coming positions, uniform in [0, 1)
    place: Tensor  # [1], which of them is next; after the last one it is the first again
    seen: Tensor  # [B, V], the tokens in each row's text; [B, 0] where nobody asks

    @classmethod
    def start(cls, batch: int, vocabulary: int, device: torch.device | str) -> Draws:
        """No noise, nothing seen."""
        device = torch.device(device)
        dtype = torch.float32 if device.type == "mps" else torch.float64
        noise = torch.zeros(batch, BLOCK, dtype=dtype, device=device)
        seen = torch.zeros(batch, vocabulary, dtype=torch.bool, device=device)
        return cls(noise, torch.zeros(1, dtype=torch.long, device=device), seen)

    def next(self) -> Tensor:
        """The numbers of the next position, [B, 1]."""
        share = self.noise.index_select(1, self.place)
        self.place.add_(1).remainder_(BLOCK)
        return share


class Noise:
    """The numbers of some streams, block after block."""

    def __init__(self, seed: int, streams: Sequence[int]):
        numbers = sorted(set(streams))
        self._sources = [np.random.Philox(key=np.array([seed % 2**64, n % 2**64], np.uint64)) for n in numbers]
        self._rows = [numbers.index(n) for n in streams]  # rows of one stream share its numbers

    def fill(self, draws: Draws) -> None:
        """The next block, for when the one before is used up."""
        raw = np.stack([source.random_raw(BLOCK) for source in self._sources])
        draws.noise.copy_(torch.from_numpy(uniform(raw, draws.noise.dtype)[self._rows]))

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._rows = [self._rows[row] for row in rows]


def uniform(raw: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """64 random bits to a number in [0, 1): as many of them as the format holds, so that none is rounded up to 1."""
    bits = 53 if dtype == torch.float64 else 24
    return (raw >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits
