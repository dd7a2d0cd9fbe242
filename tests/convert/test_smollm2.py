"""SmolLM2 as published, against `transformers` reading the same GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.convert.gguf_models import read_gguf
from regard.convert.published import SMOLLM2
from regard.data import load_tokenizer
from regard.generate import Sampling
from regard.generate.cached import CachedLanguageModel
from regard.generate.decoder import Decoder
from regard.generate.sampler import Sampler
from regard.models import LanguageModel

pytest.importorskip("accelerate")  # `transformers` needs it and `gguf` to read GGUF files
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

PROMPTS = (
    "The capital of Italy is",
    "Once upon a time, in a small village",
    "def fibonacci(n):",
    "Water boils at",
    "To be, or not to be,",
    "The three laws of motion say that",
    "Dear Sir or Madam,\n",
    "1, 1, 2, 3, 5, 8,",
    "A recipe for bread: first",
    "Der schnelle braune Fuchs",
)
LENGTH = 64


def test_greedy_continuations_equal_those_of_transformers(tmp_path: Path) -> None:
    path = SMOLLM2.cached()
    if path is None:
        pytest.skip("not on this machine: regard models get smollm2")
    given = read_gguf(path)
    model = given.config.build().eval()
    model.load_state_dict(given.weights)
    assert isinstance(model, LanguageModel)
    assert given.tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(given.tokenizer)
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json", lossless=True)
    (tmp_path / "model.gguf").symlink_to(path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    for prompt in PROMPTS:
        tokens = tokenizer.encode(prompt).tolist()
        with torch.inference_mode():
            given_tokens = torch.tensor([tokens])  # no end token: all continuations have the same length
            greedy = theirs.generate(
                given_tokens, max_new_tokens=LENGTH, do_sample=False, eos_token_id=-1, pad_token_id=0
            )
        cached = CachedLanguageModel(model, [tokens], LENGTH)
        ours = [int(token) for token in Decoder(cached, Sampler(Sampling(temperature=0), [0]), LENGTH)]
        assert ours == greedy[0, len(tokens) :].tolist(), prompt
