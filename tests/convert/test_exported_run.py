"""A trained GPT in other programs: `transformers`, onnxruntime, the `gguf` package and llama.cpp write the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_oracle import session

from regard.cli import main
from regard.data.sources import SOURCES
from regard.generate.load import LoadedModel, load

pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the exporter of PyTorch
PARTS = "--model.cap none --model.ngrams 1 --model.qk_norm false --model.feedforward swiglu --data.tokenizer bpe"
PROMPTS = ("ROMEO:\n", "To be, or not to be", "My lord,", "KING HENRY", "What, ho!\n")
LENGTH = 48  # with the prompt within the context: beyond it, each program slides in its own way


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT trained on the plays for some steps; REGARD_EXPORTED names a run that was trained for longer."""
    if given := os.environ.get("REGARD_EXPORTED"):
        return Path(given)
    if SOURCES["plays"].cached() is None:
        pytest.skip("regard data get plays")
    runs = tmp_path_factory.mktemp("runs")
    sizes = ["--train.steps", "60", "--model.layers", "2", "--model.width", "64", "--model.context", "128"]
    assert main(["train", "shakespeare-small", "--name", "r", "--runs", str(runs), *PARTS.split(), *sizes]) == 0
    return runs / "r"


def export(run: Path, out: Path) -> Path:
    assert main(["export", str(run), str(out)]) == 0
    return out


def greedy(loaded: LoadedModel, prompt: str) -> str:
    return loaded.generate(prompt, LENGTH, temperature=0)


def test_transformers_writes_the_same(run: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder, ours = export(run, tmp_path / "hub"), load(run)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for prompt in PROMPTS:
        given = tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert given[0].tolist() == ours.tokenizer.encode(prompt).tolist()
        whole = torch.ones_like(given)  # else tokens that are equal to that of padding are masked
        found = model.generate(
            given, attention_mask=whole, max_new_tokens=LENGTH, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        assert tokenizer.decode(found[0, given.shape[1] :]) == greedy(ours, prompt)


@torch.no_grad()
def test_onnxruntime_gives_the_same_logits(run: Path, tmp_path: Path) -> None:
    ours, file = load(run), session(export(run, tmp_path / "m.onnx"))
    for rows, length in ((1, 1), (1, 13), (4, 31), (2, 128)):
        tokens = torch.randint(ours.model.config.vocabulary, (rows, length))
        (found,) = file.run(None, {"input_ids": tokens.numpy()})
        np.testing.assert_allclose(found, ours.model(tokens).numpy(), atol=1e-4)


def test_the_gguf_package_reads_the_weights(run: Path, tmp_path: Path) -> None:
    gguf, safetensors = pytest.importorskip("gguf"), pytest.importorskip("safetensors.torch")
    reader = gguf.GGUFReader(export(run, tmp_path / "m.gguf"))
    hub = safetensors.load_file(export(run, tmp_path / "hub") / "model.safetensors")
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(found) == len(hub)
    wanted = hub["model.layers.1.mlp.down_proj.weight"].numpy()
    np.testing.assert_array_equal(found["blk.1.ffn_down.weight"], wanted.astype(np.float16))


def test_llama_cpp_writes_the_same(run: Path, tmp_path: Path) -> None:
    xllamacpp: Any = pytest.importorskip("xllamacpp")  # wheels of llama.cpp
    path = export(run, tmp_path / "m.gguf")
    assert main(["import", str(path), "again", "--runs", str(tmp_path)]) == 0  # weights of 16 bits, as llama.cpp has
    ours, options = load(tmp_path / "again"), xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.warmup = str(path), 128, 1, False
    server, same = xllamacpp.Server(options), []
    for prompt in PROMPTS:
        found = server.handle_completions({"prompt": prompt, "max_tokens": LENGTH, "temperature": 0})
        found = json.loads(found) if isinstance(found, str | bytes) else found
        text, own = found["choices"][0]["text"], greedy(ours, prompt)
        same.append(text == own)
        print(json.dumps([prompt, own, text == own]))
    # llama.cpp rounds keys and values to 16 bits, so that two tokens of nearly the same probability may swap.
    assert sum(same) >= len(PROMPTS) - 1
