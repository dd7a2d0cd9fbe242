"""A shelf for tensors: an unnamed file, gone with its last user.

What the attentions of a large model are given for 8,192 tokens is a gigabyte, of which any one question wants a
twelfth. On the shelf it costs no memory of the process, and reading an attention back takes milliseconds.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor


class Place(NamedTuple):
    """Where a tensor lies, and what it is."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class TensorSpill:
    """Tensors of the CPU, put once and read as often as wanted, also by several threads at once."""

    def __init__(self) -> None:
        self._number: int | None = None  # of the open file
        self._end = 0

    def put(self, x: Tensor) -> Place:
        """Keep a copy."""
        number = self._open()
        place, done = Place(self._end, x.shape, x.dtype), 0
        given = _bytes(x.detach().contiguous())
        while done < place.nbytes:
            done += os.pwrite(number, given[done:], place.start + done)
        self._end += place.nbytes
        return place

    def get(self, place: Place) -> Tensor:
        """A copy of what was put."""
        number = self._open()
        found = torch.empty(place.shape, dtype=place.dtype)
        room, done = _bytes(found), 0
        while done < place.nbytes:
            count = os.preadv(number, [room[done:]], place.start + done)
            if not count:
                raise OSError("a temporary file of this process was cut short")
            done += count
        return found

    def _open(self) -> int:
        """The file, made when it is first needed; it has no name, and is closed when nobody holds the shelf."""
        if self._number is None:
            self._number, name = tempfile.mkstemp(prefix="regard-")
            os.unlink(name)
            finalize(self, os.close, self._number)
        return self._number


def _bytes(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor of any format."""
    numbers: Any = x.view(-1).view(torch.uint8).numpy()
    return memoryview(numbers)
