"""GGUF files: every number format against the `gguf` package, whole models against their hub form, damaged files."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.convert.gguf import GGUF, write_gguf
from regard.convert.gguf_models import read_gguf, write_gguf_model
from regard.convert.quants import FORMATS
from regard.data import BpeConfig, BytesConfig
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.attention import SeparateConfig
from regard.nn.feedforward import SwiGLUConfig

gguf = pytest.importorskip("gguf")

#: Where the blocks of a format have float16 numbers.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}


@pytest.mark.parametrize("kind", FORMATS, ids=[form.name for form in FORMATS.values()])
def test_every_format_is_read_as_the_library_reads_it(kind: int) -> None:
    form = FORMATS[kind]
    draw = np.random.default_rng(kind)
    raw = draw.integers(0, 256, (64, form.size * 8), dtype=np.uint8)  # 64 rows of 8 blocks
    for at in SCALES.get(form.name, ()):  # finite numbers of an ordinary size
        scales = draw.normal(size=64 * 8).astype(np.float16).view(np.uint8).reshape(-1, 2)
        raw.reshape(-1, form.size)[:, at : at + 2] = scales
    if form.name in ("F32", "F16", "BF16"):
        numbers = draw.normal(size=(64, 8)).astype(np.float32)
        raw = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType(kind)).view(np.uint8)
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    found = form.read(raw.reshape(-1, form.size)).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("quantize", [False, True])
def test_a_written_file_is_read_by_the_library_and_by_us(tmp_path: Path, quantize: bool) -> None:
    tensors = {"a.weight": torch.randn(6, 64), "b.weight": torch.randn(5), "c.weight": torch.randn(3, 7)}
    metadata = {"general.architecture": "llama", "llama.block_count": 2, "x": 0.5, "words": ["a", "b c"], "yes": True}
    write_gguf(tmp_path / "m.gguf", metadata, tensors, quantize=quantize)
    ours, theirs = GGUF(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    assert ours.metadata == metadata
    assert [field.contents() for name, field in theirs.fields.items() if name in metadata] == list(metadata.values())
    for tensor in theirs.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensors[tensor.name].shape)
        np.testing.assert_array_equal(ours[tensor.name].numpy(), values)
        step = np.abs(tensors[tensor.name].numpy()).max() / 120 if quantize else 0.003
        np.testing.assert_allclose(values, tensors[tensor.name].numpy(), atol=step)


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama"}, {"a.weight": torch.randn(6, 64)}, quantize=True)
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for number in range(300):
        data = bytearray(whole)
        if number % 3:
            for _ in range(number % 4 + 1):
                data[draw.integers(min(len(data), 200))] = draw.integers(256)
        else:
            data = data[: draw.integers(len(data))]
        path.write_bytes(data)
        with suppress(UserError):  # any other error fails
            file = GGUF(path)
            assert all(torch.is_tensor(file[name]) for name in file)


def test_lengths_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    for head in (struct.pack("<IQQ", 3, 2**60, 1), struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62)):
        (tmp_path / "m.gguf").write_bytes(b"GGUF" + head + bytes(100))
        with pytest.raises(UserError, match="no whole GGUF file"):
            GGUF(tmp_path / "m.gguf")
    many = struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 4, 2**23)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + many)
    with pytest.raises(UserError, match="cut off"):
        GGUF(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "parts", [{}, {"tied": False, "kv_heads": 2}, {"qwen": True}], ids=["tied", "grouped", "qwen3"]
)
def test_a_model_comes_back(tmp_path: Path, parts: dict[str, Any]) -> None:
    qwen = parts.pop("qwen", False)
    projection = SeparateConfig(norms="separate", size=16) if qwen else SeparateConfig()
    sizes: dict[str, Any] = {"vocabulary": 32, "context": 24, "layers": 2, "heads": 4, "width": 32, "qk_norm": qwen}
    config = GPTConfig(**sizes, **parts, projection=projection, feedforward=SwiGLUConfig(ratio=2.0))
    model = config.build().eval()
    write_gguf_model(tmp_path / "m.gguf", config, model, None, quantize=False)
    back, weights, certificate, *_ = read_gguf(tmp_path / "m.gguf")
    again = back.build().eval()
    again.load_state_dict(weights)
    tokens = torch.arange(20)[None] % 32
    assert certificate.parameters == sum(weight.numel() for weight in model.parameters())
    torch.testing.assert_close(again(tokens), model(tokens), atol=2e-3, rtol=2e-3)
    name = "blocks.0.attention.qkv.weight"
    assert (again.state_dict()[name] - model.state_dict()[name]).abs().max() < 1e-3


def test_a_tokenizer_comes_back(tmp_path: Path) -> None:
    config = GPTConfig(
        vocabulary=300, context=24, layers=1, heads=2, width=16, qk_norm=False, feedforward=SwiGLUConfig()
    )
    text = "'Tis now the very witching time of night, when churchyards yawn; 'tis now I could drink hot blood. " * 9
    for made, kind in ((BpeConfig(vocabulary=300).build([text]), "gpt2"), (BytesConfig().build([]), "no_vocab")):
        made.save(tmp_path / "tokenizer.json")
        given = (tmp_path / "tokenizer.json").read_text("utf-8")
        write_gguf_model(tmp_path / "m.gguf", config, config.build(), given, quantize=False)
        assert read_gguf(tmp_path / "m.gguf").tokenizer == given
        fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
        assert fields["tokenizer.ggml.model"].contents() == kind
        if kind == "gpt2":
            assert fields["tokenizer.ggml.token_type"].types[1] == gguf.GGUFValueType.INT32  # as llama.cpp expects
            assert fields["tokenizer.ggml.tokens"].contents()[fields["tokenizer.ggml.eos_token_id"].contents()] == "ÿ"
