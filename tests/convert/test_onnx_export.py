"""Models written as ONNX graphs: onnxruntime gives the same numbers at other lengths and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_oracle import onnx, session

from regard.convert.onnx_export import compare, graph_of, write_onnx
from regard.errors import UserError
from regard.models import EncoderConfig, GPTConfig, TransformerConfig
from regard.nn.feedforward import SwiGLUConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.positions.position import LearnedPositionConfig

pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the exporter takes seconds, and warns
SIZES: dict[str, Any] = {"vocabulary": 40, "context": 24, "layers": 2, "heads": 2, "width": 16}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A small GPT and its file."""
    torch.manual_seed(1)
    path, model = tmp_path_factory.mktemp("onnx") / "m.onnx", GPTConfig(**SIZES).build().eval()
    made = write_onnx(path, model)
    assert made[:2] == (("input_ids",), "logits")
    assert made.difference is not None
    assert made.difference < 1e-5
    return path, model


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 7), (5, 24)])
def test_onnxruntime_gives_the_same_logits(written: tuple[Path, Any], shape: tuple[int, int]) -> None:
    path, model = written
    onnx.checker.check_model(str(path))
    tokens = torch.randint(40, shape, generator=torch.Generator().manual_seed(0))
    (found,) = session(path).run(None, {"input_ids": tokens.numpy()})
    np.testing.assert_allclose(found, model(tokens).numpy(), atol=1e-5)
    assert sorted(one.name for one in path.parent.iterdir()) == ["m.onnx"]


@torch.no_grad()
def test_a_difference_is_noticed(written: tuple[Path, Any]) -> None:
    path, model = written
    assert (compare(path, graph_of(model)) or 0) < 1e-5
    model.unembed.weight[3] += 0.1
    try:
        assert (compare(path, graph_of(model)) or 0) > 1e-3
    finally:
        model.unembed.weight[3] -= 0.1


MODELS = {
    "llama": GPTConfig(**SIZES, qk_norm=False, kv_heads=1, feedforward=SwiGLUConfig()),
    "encoder": EncoderConfig(**SIZES),
    "classes": EncoderConfig(**SIZES, head=ClassesHeadConfig(3)),
    "translation": TransformerConfig(**SIZES),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_written(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    difference = write_onnx(tmp_path / "m.onnx", MODELS[name].build()).difference
    assert difference is not None
    assert difference < 1e-5


def test_a_context_that_is_too_short_is_a_sentence(tmp_path: Path) -> None:
    short: dict[str, Any] = {**SIZES, "context": 4}
    with pytest.raises(UserError, match="a context of 4"):
        write_onnx(tmp_path / "m.onnx", GPTConfig(**short, position=LearnedPositionConfig()).build())
    assert not list(tmp_path.iterdir())
