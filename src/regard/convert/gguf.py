"""GGUF files (llama.cpp): a table of metadata and tensors, read as data with every length checked before it is used."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.config.notation import JsonObject
from regard.convert.lazy import LazyTensors
from regard.convert.quants import FORMATS, to_q8_0
from regard.errors import UserError
from regard.untrusted import map_plain

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
INT32 = 5
KINDS = {str: STRING, bool: 7, int: 4, float: 6}
LONGEST = 1 << 24  # entries of a list, and bytes of a string
MOST = 100_000  # tensors and keys


class Place(NamedTuple):
    """Where a tensor is in the file."""

    shape: tuple[int, ...]
    kind: int
    begin: int
    size: int


class GGUF(LazyTensors):
    """The metadata and the tensors of a file; a tensor is read and dequantized when it is asked for."""

    def __init__(self, path: Path):
        self.path = path
        self._data = map_plain(path, follow=True)
        self._at = 0
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, ValueError, OverflowError) as error:
            raise self._damaged(str(error)) from error

    def __getitem__(self, name: str) -> Tensor:
        place = self._places[name]
        kind = FORMATS[place.kind]
        raw = np.frombuffer(self._data, np.uint8, place.size, place.begin).reshape(-1, kind.size)
        return torch.from_numpy(np.array(kind.read(raw), np.float32).reshape(place.shape))

    def formats(self) -> dict[str, int]:
        """How many tensors have each number format."""
        return Counter(FORMATS[place.kind].name for place in self._places.values())

    def _read(self) -> None:
        if self._data[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, tensors, keys = self._unpack("<IQQ")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}; 2 and 3 can be read")
        if tensors > MOST or keys > MOST:
            raise ValueError(f"it claims {tensors:,} tensors and {keys:,} keys")
        self.metadata: JsonObject = {}
        for _ in range(keys):
            name = self._string()
            (kind,) = self._unpack("<I")
            if name in self.metadata:
                raise ValueError(f"the key {name!r} is there twice")
            self.metadata[name] = self._value(kind)
        found: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self._string()
            (axes,) = self._unpack("<I")
            if not 0 < axes <= 4 or name in found:
                raise ValueError(f"the tensor {name!r} has {axes} axes, or is there twice")
            shape = self._unpack(f"<{axes}Q")
            found[name] = shape[::-1], *self._unpack("<IQ")  # the last axis comes first
        self._place(found)

    def _place(self, found: Mapping[str, tuple[tuple[int, ...], int, int]]) -> None:
        """Where the tensors are: inside the file, and none over another."""
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise ValueError(f"its alignment is {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        self._places: dict[str, Place] = {}
        for name, (shape, kind, offset) in found.items():
            if kind not in FORMATS:
                known = ", ".join(one.name for one in FORMATS.values())
                raise ValueError(f"the tensor {name!r} has the format {kind}; those that can be read are {known}")
            elements, form = math.prod(shape), FORMATS[kind]
            if elements < 1 or shape[-1] % form.values:
                raise ValueError(f"the tensor {name!r} has the shape {shape}, which {form.name} does not divide")
            size = elements // form.values * form.size
            if begin + offset + size > len(self._data):
                raise ValueError(f"the tensor {name!r} ends after the file")
            self._places[name] = Place(shape, kind, begin + offset, size)
        order = sorted(self._places.items(), key=lambda one: one[1].begin)
        for (first, one), (second, other) in pairwise(order):
            if one.begin + one.size > other.begin:
                raise ValueError(f"the tensors {first!r} and {second!r} overlap")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        if self._at + size > len(self._data):
            raise ValueError("it is cut off")
        found = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return found

    def _string(self) -> str:
        (size,) = self._unpack("<Q")
        if size > LONGEST or self._at + size > len(self._data):
            raise ValueError(f"a string of {size:,} bytes does not fit")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _value(self, kind: int, depth: int = 0) -> object:
        if kind in SCALARS:
            return self._unpack("<" + SCALARS[kind])[0]
        if kind == STRING:
            return self._string()
        if kind != ARRAY or depth > 2:
            raise ValueError(f"a value has the unknown type {kind}")
        inner, count = self._unpack("<IQ")
        if count > LONGEST:
            raise ValueError(f"a list of {count:,} entries does not fit")
        if inner in SCALARS:
            return list(self._unpack(f"<{count}{SCALARS[inner]}"))
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _damaged(self, reason: str) -> UserError:
        return UserError(f"{self.path} is no whole GGUF file: {reason}; get it again")


def write_gguf(path: Path, metadata: JsonObject, tensors: Mapping[str, Tensor], *, quantize: bool) -> None:
    """Write a file, with matrices in Q8_0 (``quantize``) or F16, and vectors in F32."""
    head, infos, blobs, offset = bytearray(), bytearray(), [], 0
    for name, value in metadata.items():
        head += _packed(name) + _typed(value)
    for name, tensor in tensors.items():
        values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        kind, blob = 0, values.tobytes()
        if values.ndim > 1:
            fits = quantize and values.shape[-1] % 32 == 0
            kind, blob = (8, to_q8_0(values)) if fits else (1, values.astype(np.float16).tobytes())
        infos += _packed(name) + struct.pack(f"<I{values.ndim}QIQ", values.ndim, *values.shape[::-1], kind, offset)
        blobs.append(blob + bytes(-len(blob) % 32))
        offset += len(blobs[-1])
    start = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + bytes(head) + bytes(infos)
    with open(path, "wb") as file:
        file.write(start + bytes(-len(start) % 32))
        for blob in blobs:
            file.write(blob)


def _packed(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: object) -> bytes:
    """The type of a value and the value."""
    if isinstance(value, list):
        kind = INT32 if type(value[0]) is int else KINDS[type(value[0])]  # llama.cpp reads lists of int32 only
        body = b"".join(_typed(one)[4:] for one in value)
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + body
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _packed(value)
    kind = KINDS[type(value)]
    return struct.pack("<I" + SCALARS[kind], kind, value)
