"""The weights of ONNX files under the names of the exported model's parameters, dequantized.

An exporter keeps the names of most parameters but stores a linear layer's matrix transposed, as `onnx::MatMul_123`. Its
name follows from the node that multiplies by it: `/model/layers.0/self_attn/q_proj/MatMul` belongs to the layer
`model.layers.0.self_attn.q_proj`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.convert.lazy import LazyTensors
from regard.convert.onnx import FLOATS, INTEGERS, GraphFile, Node, StoredTensor
from regard.errors import UserError

#: What exporters and quantizers append to the name of a parameter.
SUFFIX = re.compile(r"(_merged_\d+)?(_quantized|_Q\d(G\d+)?)?$")
#: Operations that read a quantized weight: the inputs that are the weight, its scales and zero points, and its axis of
#: scales. The axis of DequantizeLinear is an attribute.
QUANTIZED = {
    "DequantizeLinear": (0, 1, 2, 1),
    "MatMulInteger": (1, -1, 3, -1),
    "ConvInteger": (1, -1, 3, 0),
    "DynamicQuantizeMatMul": (1, 2, 3, -1),
    "MatMulIntegerToFloat": (1, 3, 5, -1),
    "QLinearMatMul": (3, 4, 5, -1),
    "QLinearConv": (3, 4, 5, 0),
    "MatMulNBits": (1, 2, 3, 0),
}
PASSES = ("Transpose", "Cast", "Identity", "DequantizeLinear")  # between a matrix and its product
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", *(op for op in QUANTIZED if "MatMul" in op))
FURTHEST = 8  # nodes from a weight to what names or scales it


class Quantization(NamedTuple):
    """How integers become numbers: (q - zeros) * scales, the latter along an axis."""

    scales: str
    zeros: str  # "" if it is 0
    axis: int
    blocks: Node | None = None  # of MatMulNBits, which has blocks of integers along each row


class Weight(NamedTuple):
    """A parameter: the tensor that stores it, and how to read it."""

    file: GraphFile
    stored: str
    transposed: bool
    quantization: Quantization | None


class GraphNames:
    """What the tensors of a graph are used for."""

    def __init__(self, file: GraphFile):
        self.file = file
        self.readers: dict[str, list[Node]] = {}
        self.makers: dict[str, list[Node]] = {}
        for node in file.nodes:
            for name in {*node.inputs} - {""}:
                self.readers.setdefault(name, []).append(node)
            for name in node.outputs:
                self.makers.setdefault(name, []).append(node)

    def weights(self) -> Iterator[tuple[str, Weight]]:
        """Every parameter's name and weight."""
        found = {name: self.quantization(name) for name, tensor in self.file.tensors.items() if _matrix(tensor)}
        used = {part for one in found.values() if one is not None for part in (one.scales, one.zeros)}
        for node in self.file.nodes:
            if node.op in ("QuantizeLinear", "DequantizeLinear"):
                used |= {*node.inputs[1:]}  # of activations
        for name, tensor in self.file.tensors.items():
            quantization = found.get(name)
            if name in used or not tensor.shape or (tensor.kind not in FLOATS and quantization is None):
                continue
            plain = SUFFIX.sub("", name)
            named = "." in plain and "::" not in plain and not tensor.constant
            place = None if named else self.product(name)
            if place is not None:
                yield f"{place[0]}.weight", Weight(self.file, name, place[1], quantization)
            elif not tensor.constant:
                yield plain, Weight(self.file, name, False, quantization)

    def product(self, name: str) -> tuple[str, bool] | None:
        """The module that multiplies by a tensor, and whether that is stored transposed: with its inputs first."""
        inputs_first = True
        for _ in range(FURTHEST):
            nodes = self.readers.get(name, [])
            for node in nodes:
                if node.op in PRODUCTS and "/" in node.name:
                    outputs_first = node.op == "MatMulNBits" or bool(node.numbers.get("transB", 0))
                    module = node.name.rpartition("/")[0].strip("/").replace("/", ".")
                    return module, inputs_first != outputs_first
            step = next((node for node in nodes if node.op in PASSES and node.outputs), None)
            if step is None:
                return None
            inputs_first ^= step.op == "Transpose"
            name = step.outputs[0]
        return None

    def quantization(self, name: str) -> Quantization | None:
        """The scales of a tensor of integers; None if nothing scales it."""
        moved = False
        for _ in range(FURTHEST):
            for node in self.readers.get(name, []):
                slots = QUANTIZED.get(node.op)
                if slots is None or node.inputs[slots[0] : slots[0] + 1] != [name]:
                    continue
                scales = self._product_scales(node) if slots[1] < 0 else "".join(node.inputs[slots[1] : slots[1] + 1])
                zeros = "".join(node.inputs[slots[2] : slots[2] + 1])
                if scales not in self.file.tensors or (zeros and zeros not in self.file.tensors):
                    continue
                if moved and self.file.tensors[scales].size > 1:
                    continue  # the axis is another one
                axis = node.numbers.get("axis", slots[3]) if node.op == "DequantizeLinear" else slots[3]
                return Quantization(scales, zeros, axis, node if node.op == "MatMulNBits" else None)
            nodes = self.readers.get(name, [])
            step = next(
                (node for node in nodes if node.op in ("Transpose", "Gather", "Identity") and node.outputs), None
            )
            if step is None or step.inputs[0] != name:
                return None
            moved, name = moved or step.op != "Identity", step.outputs[0]
        return None

    def _product_scales(self, node: Node) -> str:
        """The scales of an integer product's weight: product, Cast, Mul by (scale of the activations * scales)."""
        for cast in self.readers.get(node.outputs[0], []) if node.outputs else ():
            for scaled in self.readers.get(cast.outputs[0], []) if cast.outputs else ():
                for factor in (name for name in scaled.inputs if name != cast.outputs[0]):
                    for maker in self.makers.get(factor, []):
                        if stored := [name for name in maker.inputs if name in self.file.tensors]:
                            return stored[0]
        return ""


class OnnxTensors(LazyTensors):
    """The parameters of one or several ONNX files, each with a prefix of its names; read when they are asked for."""

    def __init__(self, files: Mapping[Path, str]):
        self._places: dict[str, Weight] = {}
        for path, prefix in files.items():
            for name, weight in GraphNames(GraphFile(path)).weights():
                if prefix + name in self._places:
                    raise UserError(f"{path} has two tensors for the parameter {prefix + name}; get it again")
                self._places[prefix + name] = weight
        self.dequantized = sorted(name for name, one in self._places.items() if one.quantization is not None)

    def __getitem__(self, name: str) -> Tensor:
        weight = self._places[name]
        try:
            array = weight.file.array(weight.stored)
            if weight.quantization is not None:
                array = dequantized(weight.file, array, weight.quantization)
        except ValueError as error:
            raise UserError(f"the tensor {name} of {weight.file.path} cannot be read: {error}") from error
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        tensor = torch.from_numpy(np.array(array))  # a copy that may be written
        return tensor.t() if weight.transposed and tensor.ndim == 2 else tensor


def dequantized(file: GraphFile, integers: np.ndarray, how: Quantization) -> np.ndarray:
    """The numbers that quantized integers stand for."""
    scales = file.array(how.scales).astype(np.float32)
    zeros = file.array(how.zeros) if how.zeros else np.zeros(1, np.uint8)
    if how.blocks is not None:
        return _unpacked(integers, scales, zeros if how.zeros else None, how.blocks)
    if max(scales.size, zeros.size) > 1:
        shape = [1] * integers.ndim
        shape[how.axis] = -1
        scales, zeros = (part.reshape(shape) if part.size > 1 else part.reshape(-1)[:1] for part in (scales, zeros))
    else:
        scales, zeros = scales.reshape(-1)[0], zeros.reshape(-1)[0]
    return (integers.astype(np.float32) - zeros.astype(np.float32)) * scales


def _unpacked(packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, node: Node) -> np.ndarray:
    """The matrix [N, K] of MatMulNBits: integers of 4 or 8 bits, in blocks of a row that share a scale and a zero."""
    bits, size = node.numbers.get("bits", 4), node.numbers.get("block_size", 0)
    rows, columns = node.numbers.get("N", 0), node.numbers.get("K", 0)
    if bits not in (4, 8) or size < 1 or rows < 1 or columns < 1:
        raise ValueError(f"its product has {bits} bits in blocks of {size}, which cannot be read")
    blocks = -(-columns // size)

    def integers(bytes_: np.ndarray, count: int) -> np.ndarray:
        values = bytes_.reshape(rows, -1)
        if bits == 4:
            values = np.stack([values & 15, values >> 4], axis=-1).reshape(rows, -1)
        return values[:, :count].astype(np.float32)

    if zeros is not None and zeros.dtype != np.uint8:
        zero = zeros.astype(np.float32).reshape(rows, blocks, 1)
    else:
        zero = np.float32(1 << bits - 1) if zeros is None else integers(zeros, blocks)[..., None]
    values = integers(packed, blocks * size).reshape(rows, blocks, size)
    return ((values - zero) * scales.reshape(rows, blocks, 1)).reshape(rows, -1)[:, :columns]


def _matrix(tensor: StoredTensor) -> bool:
    """Whether a tensor may be a quantized weight."""
    return tensor.kind in INTEGERS and bool(tensor.shape) and tensor.size > 1


def onnx_files(folder: Path, given: Path | None) -> list[Path]:
    """The ONNX files of a model: ``given``, or the only one of the folder or of its folder `onnx`.

    An encoder-decoder has two: `encoder_model.onnx` and `decoder_model_merged.onnx`, or other names with the same end.
    """
    found = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]) if given is None else [given]
    halves = [path for path in found if re.match(r"(encoder|decoder)_model", path.name)]
    for half in halves:
        end = re.sub(r"^(encoder_model|decoder_model_merged|decoder_model)", "", half.name)
        names = (f"encoder_model{end}", f"decoder_model_merged{end}", f"decoder_model{end}")
        encoder, *decoders = (path for name in names if (path := half.with_name(name)).exists())
        if decoders and encoder.name == names[0]:
            return [encoder, decoders[0]]
    usual = [path for path in found if path.name == "model.onnx"] or found
    if halves or len(usual) > 1:
        names = ", ".join(path.name for path in usual[:6])
        raise UserError(
            f"{folder} has several ONNX files, of which none is a whole model ({names}); import one by name"
        )
    return usual
