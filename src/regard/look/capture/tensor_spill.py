"""Tensors in an unnamed temporary file, which disappears with its last user.

The queries, keys and values of a large model over 8,192 tokens take a gigabyte, of which a view needs one layer at a
time. In the file they take no memory of the process, and reading one layer back takes milliseconds.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, NamedTuple
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
        self._file: int | None = None  # the descriptor
        self._end = 0

    def put(self, x: Tensor) -> SpilledTensor:
        """Write a copy."""
        file = self._open()
        place, done = SpilledTensor(self._end, x.shape, x.dtype), 0
        data = _bytes(x.detach().contiguous())
        while done < place.nbytes:
            done += os.pwrite(file, data[done:], place.start + done)
        self._end += place.nbytes
        return place

    def get(self, place: SpilledTensor) -> Tensor:
        """Read a copy."""
        file = self._open()
        x = torch.empty(place.shape, dtype=place.dtype)
        data, done = _bytes(x), 0
        while done < place.nbytes:
            count = os.preadv(file, [data[done:]], place.start + done)
            if not count:
                raise OSError("a temporary file of this process is truncated")
            done += count
        return x

    def _open(self) -> int:
        """The file, created on first use; it has no name and is closed with this object."""
        if self._file is None:
            self._file, name = tempfile.mkstemp(prefix="regard-")
            os.unlink(name)
            finalize(self, os.close, self._file)
        return self._file


def _bytes(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor of any type."""
    array: Any = x.view(-1).view(torch.uint8).numpy()
    return memoryview(array)
