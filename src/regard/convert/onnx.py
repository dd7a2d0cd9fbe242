"""ONNX files: the stored tensors and the nodes of the graph, read as data. Nothing is run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regard.convert.protobuf import Field, content, fields, integer, numbers, text
from regard.errors import UserError
from regard.untrusted import map_plain

MOST = 1_000_000  # nodes and tensors
DEEPEST = 4  # graphs inside of nodes, as the two branches of an If
EXTERNAL = 1  # the data location of a tensor in another file
BFLOAT16, UINT4, INT4 = 16, 21, 22
TYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8"}
TYPES |= {BFLOAT16: "<u2", UINT4: "u1", INT4: "u1"}
FLOATS = (1, 10, 11, BFLOAT16)
INTEGERS = (2, 3, UINT4, INT4)  # of quantized weights


@dataclass
class StoredTensor:
    """A TensorProto whose values have not been read yet."""

    name: str = ""
    shape: list[int] = field(default_factory=list)
    kind: int = 0
    external: dict[str, str] = field(default_factory=dict)
    raw: list[memoryview] = field(default_factory=list)  # raw_data, or the packed floats
    listed: list[int] = field(default_factory=list)  # int32_data and int64_data
    constant: bool = False  # made by a node, not stored as a parameter

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass
class Node:
    """A NodeProto: an operation of the graph."""

    op: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # its integer attributes


class GraphFile:
    """The nodes and the stored tensors of an ONNX file, of its main graph and of the graphs inside of nodes."""

    def __init__(self, path: Path):
        self.path = path
        self.nodes: list[Node] = []
        self.tensors: dict[str, StoredTensor] = {}
        self._files: dict[str, memoryview] = {}
        try:
            data = memoryview(map_plain(path, follow=True))
            graphs = [content(value) for number, value in fields(data) if number == 7]
            if len(graphs) != 1:
                raise ValueError("it has no graph")
            self._graph(graphs[0], 0)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self.path} is no whole ONNX file ({why}); get it again")

    def array(self, name: str) -> np.ndarray:
        """The values of a stored tensor; four-bit integers as bytes, bfloat16 as float32."""
        tensor = self.tensors[name]
        try:
            data = self._data(tensor)
            if tensor.kind in (UINT4, INT4):
                return _nibbles(data, tensor)
            array = np.frombuffer(data, TYPES[tensor.kind])
            if array.size != tensor.size:
                raise ValueError(f"the tensor {name!r} has {array.size:,} values for the shape {tensor.shape}")
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if tensor.kind == BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(tensor.shape)

    def _data(self, tensor: StoredTensor) -> bytes | memoryview:
        if tensor.external:
            return self._external(tensor)
        if tensor.listed:  # small integers and 16-bit floats, one number each
            wide = np.array(tensor.listed, np.int64)
            return wide.astype("<u2" if TYPES[tensor.kind] == "<f2" else TYPES[tensor.kind]).tobytes()
        return tensor.raw[0] if len(tensor.raw) == 1 else b"".join(tensor.raw)

    def _external(self, tensor: StoredTensor) -> memoryview:
        """The bytes of a tensor in another file, which must be a plain one in the same folder."""
        name = tensor.external.get("location", "")
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"the tensor {tensor.name!r} is in the file {name!r}, which is not in the same folder")
        if name not in self._files:
            self._files[name] = memoryview(map_plain(self.path.with_name(name)))
        data = self._files[name]
        begin, size = (int(tensor.external.get(key) or default) for key, default in (("offset", 0), ("length", -1)))
        size = len(data) - begin if size < 0 else size
        if begin < 0 or begin + size > len(data):
            raise ValueError(f"the tensor {tensor.name!r} ends after {name}")
        return data[begin : begin + size]

    def _graph(self, data: memoryview, depth: int) -> None:
        if depth > DEEPEST:
            raise ValueError(f"its graphs are nested more than {DEEPEST} deep")
        for number, value in fields(data):
            if number == 1:
                self._node(content(value), depth)
            elif number == 5:
                self._add(self._tensor(content(value)))
            elif number == 15:
                raise ValueError("it has sparse tensors, which cannot be read")
            if len(self.nodes) > MOST or len(self.tensors) > MOST:
                raise ValueError(f"it has more than {MOST:,} nodes or tensors")

    def _add(self, tensor: StoredTensor) -> None:
        if tensor.name in self.tensors:
            raise ValueError(f"the tensor {tensor.name!r} is there twice")
        self.tensors[tensor.name] = tensor

    def _node(self, data: memoryview, depth: int) -> None:
        node = Node()
        attributes = []
        for number, value in fields(data):
            if number in (1, 2):
                (node.inputs if number == 1 else node.outputs).append(text(value))
            elif number == 3:
                node.name = text(value)
            elif number == 4:
                node.op = text(value)
            elif number == 5:
                attributes.append(content(value))
        self.nodes.append(node)
        for one in attributes:
            self._attribute(node, one, depth)

    def _attribute(self, node: Node, data: memoryview, depth: int) -> None:
        """An attribute of a node: a number, a graph, or the tensor of a constant that is a matrix."""
        name = ""
        for number, value in fields(data):
            if number == 1:
                name = text(value)
            elif number == 3:
                node.numbers[name] = integer(value)
            elif number in (6, 11):
                self._graph(content(value), depth + 1)
            elif number == 5 and node.op == "Constant" and node.outputs:
                tensor = self._tensor(content(value))
                tensor.name, tensor.constant = node.outputs[0], True
                if len(tensor.shape) > 1 and tensor.kind in FLOATS + INTEGERS and tensor.name not in self.tensors:
                    self._add(tensor)

    def _tensor(self, data: memoryview) -> StoredTensor:
        tensor = StoredTensor()
        for number, value in fields(data):
            if number == 1:
                tensor.shape += numbers(value)
            elif number == 2:
                tensor.kind = integer(value)
            elif number in (4, 9, 10):  # floats, raw bytes, doubles
                tensor.raw.append(content(value))
            elif number in (5, 7):
                tensor.listed += numbers(value)
            elif number == 8:
                tensor.name = text(value)
            elif number == 13:
                tensor.external |= dict([_pair(content(value))])
            elif number == 14 and integer(value) == EXTERNAL:
                tensor.external.setdefault("location", "")
        if len(tensor.shape) > 8 or any(not 0 <= size < 1 << 40 for size in tensor.shape):
            raise ValueError(f"the tensor {tensor.name!r} has the shape {tensor.shape[:9]}")
        if tensor.kind not in TYPES and tensor.kind != 8:  # texts are never read
            raise ValueError(f"the tensor {tensor.name!r} has the number format {tensor.kind}, which cannot be read")
        return tensor


def _pair(data: memoryview) -> tuple[str, str]:
    """The key and the value of a StringStringEntryProto."""
    found: dict[int, Field] = dict(fields(data))
    return text(found.get(1, memoryview(b""))), text(found.get(2, memoryview(b"")))


def _nibbles(data: bytes | memoryview, tensor: StoredTensor) -> np.ndarray:
    """Four-bit integers, two in a byte with the lower half first."""
    packed = np.frombuffer(data, np.uint8)
    if packed.size != (tensor.size + 1) // 2:
        raise ValueError(f"the tensor {tensor.name!r} has {packed.size:,} bytes for the shape {tensor.shape}")
    values = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[: tensor.size].reshape(tensor.shape)
    return values if tensor.kind == UINT4 else ((values ^ 8).astype(np.int8) - 8).astype(np.int8)
