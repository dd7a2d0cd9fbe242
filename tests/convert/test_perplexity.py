"""Perplexity with a sliding window equals the recipe in the documentation of `transformers`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import randomized

from regard.cli import main
from regard.data.tokenizers.bytes import BytesConfig

transformers = pytest.importorskip("transformers")

TEXT = "A sliding window predicts each token from a long context; the stride says how long. " * 3


def documented(theirs: Any, ids: torch.Tensor, longest: int, stride: int) -> float:
    """The loop of "Perplexity of fixed-length models". Each window counts as many tokens as its loss is a mean of."""
    total, count, previous = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + longest, ids.shape[1])
        window = ids[:, begin:end]
        targets = window.clone()
        targets[:, : -(end - previous)] = -100
        with torch.no_grad():
            loss = theirs(window, labels=targets).loss
        counted = int((targets[:, 1:] != -100).sum())  # labels are shifted by one inside of the model
        total, count, previous = total + float(loss) * counted, count + counted, end
        if end == ids.shape[1]:
            break
    return math.exp(total / count)


@pytest.mark.parametrize(("longest", "stride"), [(32, 8), (32, 31)])
def test_perplexity_with_a_stride(longest: int, stride: int, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    fields = {"vocab_size": 256, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 512}
    theirs = randomized(transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**fields)))
    theirs.save_pretrained("theirs")
    tokenizer = BytesConfig().build([])
    tokenizer.save("theirs/tokenizer.json")
    Path("text.txt").write_text(TEXT)
    assert main(["import", "theirs", "ours"]) == 0
    capsys.readouterr()
    window = ["--window", str(longest - 1), "--stride", str(stride)]
    assert main(["evaluate", "ours", "--file", "text.txt", *window, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ids = torch.from_numpy(tokenizer.encode(TEXT))[None]
    assert found["targets"] == ids.shape[1] - 1
    assert found["perplexity"] == pytest.approx(documented(theirs, ids, longest, stride), rel=1e-5)
