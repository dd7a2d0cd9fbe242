"""Tensors in an unnamed temporary file, which disappears with its last user.

The queries, keys and values of a large model over 8,192 tokens take a gigabyte, of which a view needs one layer at a
time. In the file they take no memory of the process, and reading one layer back takes milliseconds.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, NamedTuple
from weakref import finalize

import torch
from torch import Tensor


class SpilledTensor(NamedTuple):
    """Offset, shape and type of a tensor in the file."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class TensorSpill:
    """CPU tensors, written once and read any number of times, also from several threads at once."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def put(self, x: Tensor) -> SpilledTensor:
        """Write a copy. The file is created on first use; it has no name and disappears with this object."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0, prefix="regard-")  # noqa: SIM115
            finalize(self, self._file.close)
        place = SpilledTensor(self._file.seek(0, os.SEEK_END), x.shape, x.dtype)
        data = _bytes(x.detach().contiguous())
        while data:
            data = data[self._file.write(data) :]
        return place

    def get(self, place: SpilledTensor) -> Tensor:
        """Read a copy."""
        assert self._file is not None  # `put` created it
        x = torch.empty(place.shape, dtype=place.dtype)
        if x.numel() and os.preadv(self._file.fileno(), [_bytes(x)], place.start) != place.nbytes:
            raise OSError("a temporary file of this process is truncated")
        return x


def _bytes(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor of any type."""
    return memoryview(x.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
