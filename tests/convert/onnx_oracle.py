"""onnxruntime on a quantized ONNX file whose activations stay floating-point numbers, as in the imported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

INTEGER_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def session(model: Path | bytes, optimize: bool = True) -> Any:
    """A session on the CPU with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


def float_activations(path: Path) -> bytes:
    """The file without the quantization of activations; weights stay integers with their scales.

    Pairs of QuantizeLinear and DequantizeLinear become Identity. Integer products, between DynamicQuantizeLinear and a
    Mul by both scales, become DequantizeLinear of the weight and a product of floating-point numbers.
    """
    model = onnx.load(str(path))
    _rewrite(model.graph)
    return model.SerializeToString()


def _rewrite(graph: Any) -> None:
    makers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced, made = [], {}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rewrite(attribute.g)
        if node.op_type == "DequantizeLinear" and makers.get(node.input[0], node).op_type == "QuantizeLinear":
            given = makers[node.input[0]].input[0]
            made[node.output[0]] = [onnx.helper.make_node("Identity", [given], [node.output[0]])]
            replaced.append(node)
        elif node.op_type in INTEGER_PRODUCTS:
            integers, weight, _, zeros = node.input
            given = integers.removesuffix("_quantized")  # what DynamicQuantizeLinear reads, maybe in an outer graph
            (cast,) = readers[node.output[0]]
            (scaled,) = readers[cast.output[0]]
            (factor,) = (name for name in scaled.input if name != cast.output[0])
            (scale,) = (name for name in makers[factor].input if not name.startswith(f"{given}_scale"))
            floats = onnx.helper.make_node("DequantizeLinear", [weight, scale, zeros], [f"{scaled.output[0]}_weight"])
            product = onnx.helper.make_node(
                INTEGER_PRODUCTS[node.op_type], [given, floats.output[0]], [scaled.output[0]]
            )
            product.attribute.extend(node.attribute)
            made[scaled.output[0]] = [floats, product]
            replaced.append(scaled)
    nodes = [new for node in graph.node for new in (made[node.output[0]] if node in replaced else [node])]
    del graph.node[:]
    graph.node.extend(nodes)
