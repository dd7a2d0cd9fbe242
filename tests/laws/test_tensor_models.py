"""Every model on tensor-parallel ranks: outputs, gradients and their norm are those of one process, or it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_kit import gradients, inputs, randomized
from tensor_kit import CASES, reassembled

from forked_ranks import run_ranks

PROGRAM = Path(__file__).with_name("tensor_ranks.py")
#: Words of the refusal of each model that has one.
REFUSED = {
    **dict.fromkeys(("gpt linear", "gpt performer", "gpt lsh", "gpt segments"), "--model.attention softmax"),
    **dict.fromkeys(("gpt talking", "gpt reformer", "transformer linear"), "--model.attention softmax"),
    **dict.fromkeys(("encoder linformer", "graph gat", "graph gat dynamic"), "--model.attention softmax"),
    **dict.fromkeys(("gpt s4d", "gpt mamba", "gpt mingru", "gpt minlstm", "gpt hybrid"), "--model.attention softmax"),
    **dict.fromkeys(("gpt latent", "transformer latent"), "--model.projection separate"),
    **dict.fromkeys(("graph", "graph all", "graph links"), "the edges of a graph"),
    **dict.fromkeys(("rnn", "lstm", "gru", "convolution", "efficientnet", "image cnn"), "no attention or"),
    **dict.fromkeys(("image lstm", "dlinear", "outside"), "no attention or"),
    **dict.fromkeys(("seq2seq fixed", "seq2seq bahdanau", "seq2seq luong"), "no attention or"),
}


def results(folder: Path, name: str, size: int) -> list[dict[str, Any]]:
    """What each rank has written; it may be a refusal, but no error."""
    found = [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(size)]
    for one in found:
        assert "error" not in one, one["error"]
    return found


def check(name: str, found: list[dict[str, Any]], tensor: int) -> None:
    """The ranks' results are those of one process."""
    model = randomized(CASES[name])
    batch, parts = inputs(model), len(found) // tensor
    with torch.no_grad():
        output = model.eval()(*batch.arguments)
    want = gradients(model, batch)
    norm = torch.nn.utils.get_total_norm(list(want.values()))
    for rank, one in enumerate(found):
        torch.testing.assert_close(one["output"], output[rank // tensor :: parts], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one["norm"], norm, rtol=1e-10, atol=0)
    for part in range(parts):
        own = found[part * tensor : (part + 1) * tensor]
        again = reassembled([(one["gradients"], one["cuts"]) for one in own])
        assert again.keys() == want.keys()
        for key in want:
            torch.testing.assert_close(again[key], want[key], rtol=1e-10, atol=1e-10, msg=f"{key} {part}")
    for key in want.keys() - found[0]["cuts"].keys():  # what is whole on every rank stays so
        assert all(torch.equal(one["gradients"][key], found[0]["gradients"][key]) for one in found), key


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_ranks(PROGRAM, 2, folder, "2", *CASES)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_tensor_parallel_ranks_equal_one_process_or_refuse(name: str, two_ranks: Path) -> None:
    found = results(two_ranks, name, 2)
    if "refusal" in found[0]:
        assert REFUSED[name] in found[0]["refusal"]
        assert "--layout.tensor 1" in found[0]["refusal"]
        return
    assert name not in REFUSED
    check(name, found, 2)


#: Without dropout: groups that share a batch draw other masks for its rows.
FEW = [name for name in CASES if name.startswith("tensor ") and name != "tensor dropout"]
FEW += ["transformer", "encoder bert", "vit relative"]


@pytest.mark.slow
@pytest.mark.parametrize("tensor", [2, 4])
def test_four_ranks_equal_one_process(tensor: int, tmp_path: Path) -> None:
    """Two groups of two, which share the batch by FSDP; or four that share every layer."""
    names = [name for name in FEW if (getattr(CASES[name], "kv_heads", None) or 4) % tensor == 0]
    run_ranks(PROGRAM, 4, tmp_path, str(tensor), *names)
    for name in names:
        check(name, results(tmp_path, name, 4), tensor)
