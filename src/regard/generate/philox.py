"""The random numbers of sampling, as a function of (seed, stream, position) alone.

Philox 4x64 (Salmon et al. 2011) is keyed with the seed and the number of the stream; its p-th number decides the p-th
token. So a sampled text is the same alone and in any batch, on every device. NumPy keeps the raw numbers of its bit
generators the same from release to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCK = 256  # positions per copy to the device


class SamplerState(NamedTuple):
    """The tensors that sampling reads and updates in place, at fixed addresses on the device."""

    uniforms: Tensor  # [B, BLOCK], numbers for the next positions, uniform in [0, 1)
    position: Tensor  # [1], the column of the next number; after the last column comes the first
    seen: Tensor  # [B, V], whether a token is in a row's text; [B, 0] where no repetition penalty needs it

    @classmethod
    def start(cls, batch: int, vocabulary: int, device: torch.device | str, position: int = 0) -> SamplerState:
        """All zeros."""
        device = torch.device(device)
        dtype = torch.float32 if device.type == "mps" else torch.float64
        uniforms = torch.zeros(batch, BLOCK, dtype=dtype, device=device)
        seen = torch.zeros(batch, vocabulary, dtype=torch.bool, device=device)
        return cls(uniforms, torch.full((1,), position % BLOCK, device=device), seen)

    def next(self) -> Tensor:
        """The numbers of the next position, [B, 1]."""
        numbers = self.uniforms.index_select(1, self.position)
        self.position.add_(1).remainder_(BLOCK)
        return numbers


class PhiloxStreams:
    """The numbers of one stream per row, block after block; the first block contains ``position``."""

    def __init__(self, seed: int, streams: Sequence[int], position: int = 0):
        numbers = sorted(set(streams))
        self._generators = [np.random.Philox(key=np.array([seed % 2**64, n % 2**64], np.uint64)) for n in numbers]
        self._rows = [numbers.index(n) for n in streams]  # rows of one stream share its numbers
        for generator in self._generators:
            generator.random_raw(position // BLOCK * BLOCK, output=False)

    def fill(self, state: SamplerState) -> None:
        """Write the next block into ``state.uniforms``."""
        raw = np.stack([generator.random_raw(BLOCK) for generator in self._generators])
        state.uniforms.copy_(torch.from_numpy(uniform(raw, state.uniforms.dtype)[self._rows]))

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all but these rows."""
        self._rows = [self._rows[row] for row in rows]


def uniform(raw: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """64 random bits to a number in [0, 1): as many of them as the type holds, so that none is rounded up to 1."""
    bits = 53 if dtype == torch.float64 else 24
    return (raw >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits
