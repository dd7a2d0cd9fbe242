"""ONNX files: number formats and quantized products against onnxruntime, names by the graph, damaged files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_oracle import onnx, session
from safetensors.torch import load_file

from regard.cli import main
from regard.convert.hub import read_hub, write_hub
from regard.convert.onnx_weights import OnnxTensors
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.feedforward import SwiGLUConfig

helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


def write(path: Path, nodes: list[Any], tensors: dict[str, Any], inputs: dict[str, int], **options: Any) -> None:
    """A graph with inputs [1, width] and an output y for each node's last output."""
    read = {name for node in nodes for name in node.input}
    outputs = [name for node in nodes for name in node.output if name not in read]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, [None, width]) for name, width in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [
            one if isinstance(one, onnx.TensorProto) else onnx.numpy_helper.from_array(one, name)
            for name, one in tensors.items()
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path), **options)


def as_exported(tensors: dict[str, torch.Tensor], path: Path, **options: Any) -> None:
    """A file with the names that an exporter gives: matrices of linear layers are anonymous and transposed."""
    nodes, stored, inputs = [], {}, {}
    for number, (name, tensor) in enumerate(tensors.items()):
        if tensor.ndim == 2 and "embed" not in name:
            stored[f"onnx::MatMul_{number}"] = tensor.numpy().T.copy()
            inputs[f"x{number}"] = tensor.shape[1]
            place = "/" + name.removesuffix(".weight").replace(".", "/").replace("layers/", "layers.") + "/MatMul"
            nodes.append(helper.make_node("MatMul", [f"x{number}", f"onnx::MatMul_{number}"], [f"y{number}"], place))
        else:
            stored[name] = tensor.numpy()
            nodes.append(helper.make_node("Identity", [name], [f"y{number}"]))  # a quantizer drops what is not used
    stored["shape"] = np.array([1, 2, 3])  # graphs have constants that are no weights
    write(path, nodes, stored, inputs, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama in the hub's layout."""
    config = GPTConfig(
        vocabulary=64, context=32, layers=2, heads=2, width=16, qk_norm=False, tied=True, feedforward=SwiGLUConfig()
    )
    torch.manual_seed(1)
    write_hub(tmp_path / "hub", config, config.build(), None)
    return tmp_path / "hub"


def only_onnx(folder: Path, head: bool = False, **options: Any) -> dict[str, torch.Tensor]:
    """Replace the safetensors file of a folder by an ONNX file; ``head``: with a tensor of its own, as exporters do."""
    tensors = load_file(folder / "model.safetensors")
    if head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    as_exported(tensors, folder / "model.onnx", **options)
    (folder / "model.safetensors").unlink()
    return tensors


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("external", [False, True])
def test_anonymous_matrices_are_named_by_the_graph(folder: Path, head: bool, external: bool) -> None:
    want = read_hub(folder)
    data = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 0} if external else {}
    only_onnx(folder, head, **data)
    found = read_hub(folder)
    assert found.config == want.config
    assert found.certificate.dequantized == []
    assert found.weights.keys() == want.weights.keys()
    assert all(torch.equal(found.weights[name], want.weights[name]) for name in want.weights)


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_a_dynamically_quantized_model_is_dequantized(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    tensors = only_onnx(folder, head=True)
    (folder / "onnx").mkdir()
    small = folder / "onnx" / "model_quantized.onnx"
    quantization.quantize_dynamic(str(folder / "model.onnx"), str(small), weight_type=quantization.QuantType[kind])
    (folder / "model.onnx").unlink()
    found = read_hub(folder)
    assert len(found.certificate.dequantized) == 15  # 7 products in each of 2 layers, and the head
    assert not found.config.tied  # type: ignore[attr-defined] (the head is quantized, the table of tokens is not)
    theirs = OnnxTensors({small: ""})
    for name, tensor in tensors.items():
        step = (tensor.max().clamp(min=0) - tensor.min().clamp(max=0)) / 255
        assert (theirs[name] - tensor).abs().max() <= (step * 1.01 if name in theirs.dequantized else 0)
    assert main(["import", str(small), "mine", "--runs", str(folder / "runs"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["dequantized"]) == 15


INTEGERS = np.random.default_rng(0).integers(-128, 128, (32, 6)).astype(np.int8)
STEPS = np.linspace(0.01, 0.05, 6, dtype=np.float32)


def quantized_products() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Nodes and tensors of a product of x [32, 32] and a quantized matrix, for each way to write it."""
    weight = {"w_quantized": INTEGERS, "w_scale": STEPS, "w_zero": np.arange(6, dtype=np.int8)}
    parts, last = ["w_quantized", "w_scale", "w_zero"], "/layer/MatMul"
    packed = np.random.default_rng(1).integers(0, 256, (6, 2, 8), dtype=np.uint8)
    scales, zeros = np.linspace(0.1, 0.4, 12, dtype=np.float32), np.arange(6, dtype=np.uint8) * 17
    bits = {"K": 32, "N": 6, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    turned = {"w_quantized": INTEGERS.T.copy(), "w_scale": STEPS[:1], "w_zero": np.array([3], np.int8)}
    return {
        "QDQ by column": (
            [
                helper.make_node("DequantizeLinear", parts, ["w"], axis=1),
                helper.make_node("MatMul", ["x", "w"], ["y"], last),
            ],
            weight,
        ),
        "QDQ and Gemm": (
            [
                helper.make_node("DequantizeLinear", parts, ["w"]),
                helper.make_node("Gemm", ["x", "w"], ["y"], last, transB=1),
            ],
            {name: one.reshape(()) if one.size == 1 else one for name, one in turned.items()},
        ),
        "4 bits": (
            [helper.make_node("MatMulNBits", ["x", "w_Q4", "s", "z"], ["y"], last, **bits)],
            {"w_Q4": packed, "s": scales, "z": zeros},
        ),
        "4 bits without zeros": (
            [helper.make_node("MatMulNBits", ["x", "w_Q4", "s"], ["y"], last, **bits)],
            {"w_Q4": packed, "s": scales},
        ),
        "16 bits": (
            [
                helper.make_node("Cast", ["onnx::MatMul_1"], ["w"], to=FLOAT),
                helper.make_node("MatMul", ["x", "w"], ["y"], last),
            ],
            {"onnx::MatMul_1": np.random.default_rng(2).normal(size=(32, 6)).astype(np.float16)},
        ),
    }


@pytest.mark.parametrize("name", quantized_products())
def test_a_quantized_product_is_that_of_onnxruntime(name: str, tmp_path: Path) -> None:
    nodes, tensors = quantized_products()[name]
    write(tmp_path / "m.onnx", nodes, tensors, {"x": 32})
    (product,) = session(tmp_path / "m.onnx").run(None, {"x": np.eye(32, dtype=np.float32)})
    theirs = OnnxTensors({tmp_path / "m.onnx": ""})
    assert list(theirs) == ["layer.weight"]
    np.testing.assert_allclose(theirs["layer.weight"].float().numpy().T, product, atol=1e-6)


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("raw", [False, True])
def test_numbers_are_those_of_the_library(kind: str, raw: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    type_ = onnx.TensorProto.DataType.Value(kind)
    stored = values.astype(helper.tensor_dtype_to_np_dtype(type_))
    tensor = helper.make_tensor("a.weight", type_, [3, 4], stored.tobytes() if raw else stored.flatten(), raw=raw)
    write(tmp_path / "m.onnx", [], {"a.weight": tensor}, {})
    found = OnnxTensors({tmp_path / "m.onnx": ""})["a.weight"]
    np.testing.assert_array_equal(found.double().numpy(), onnx.numpy_helper.to_array(tensor).astype(np.float64))


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "a/b", "..", "", "link"])
def test_data_outside_of_the_folder_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "inner" / "link").symlink_to("../secret")
    tensor = onnx.TensorProto(name="a.weight", dims=[4, 4], data_type=FLOAT, data_location=1)
    tensor.external_data.add(key="location", value=place)
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    (tmp_path / "inner" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"not in the same folder|a link"):
        OnnxTensors({tmp_path / "inner" / "m.onnx": ""})["a.weight"]


def test_sizes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    for shape in ([2**39, 2**39], [-1], [1] * 9):
        tensor = onnx.TensorProto(name="a.weight", dims=shape, data_type=FLOAT, raw_data=bytes(16))
        model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UserError, match="no whole ONNX file"):
            OnnxTensors({tmp_path / "m.onnx": ""})["a.weight"]


def test_a_damaged_file_is_a_sentence(folder: Path) -> None:
    only_onnx(folder)
    path = folder / "model.onnx"
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    for number in range(300):
        data = bytearray(whole)
        if number % 3:
            for _ in range(number % 4 + 1):
                data[draw.integers(len(data) if number % 2 else 400)] = draw.integers(256)
        else:
            data = data[: draw.integers(len(data))]
        path.write_bytes(data)
        with suppress(UserError):  # any other error fails
            read_hub(folder)


def test_several_files_are_a_question(folder: Path) -> None:
    only_onnx(folder)
    (folder / "model.onnx").rename(folder / "model_a.onnx")
    (folder / "model_b.onnx").write_bytes(b"")
    with pytest.raises(UserError, match=r"model_a.onnx, model_b.onnx"):
        read_hub(folder)
    assert read_hub(folder, onnx=folder / "model_a.onnx").certificate.tensors == 20
