"""Every family against `transformers`: import, export and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import in_float64, randomized

from regard.convert.hub import read_hub, write_hub

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt2 untied": ("GPT2", {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}),
    "llama": ("Llama", SIZES),
    "llama tied": ("Llama", SIZES | {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("Llama", SIZES | {"head_dim": 16}),
    "llama 3 scaling": ("Llama", SIZES | {"rope_parameters": LLAMA3}),
    "llama with linear scaling": (
        "Llama",
        SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "llama with yarn": ("Llama", SIZES | {"rope_parameters": YARN}),
    "mistral": ("Mistral", SIZES | {"sliding_window": 5}),
    "mistral without a window": ("Mistral", SIZES | {"sliding_window": None}),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8}),
}


def oracle(name: str, fields: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{name}Config")(**fields)
    config._attn_implementation = config._experts_implementation = "eager"  # kernels in float32 only otherwise
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("name", "fields"), DECODERS.values(), ids=DECODERS)
def test_a_decoder_equals_transformers_and_comes_back(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    theirs = randomized(oracle(name, fields))
    theirs.save_pretrained(tmp_path / "theirs")
    config, weights, certificate, *_ = read_hub(tmp_path / "theirs")
    model = config.build().eval()
    model.load_state_dict(weights)
    assert certificate.parameters == sum(weight.numel() for weight in theirs.parameters())
    tokens = torch.randint(61, (2, 19), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert gap(model(tokens), theirs(tokens).logits) <= 1e-4
        exact = in_float64(lambda: oracle(name, fields), theirs)(tokens).logits
        assert gap(model.double()(tokens), exact) <= 1e-9
    write_hub(tmp_path / "ours", config, model.float(), None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    first, second = theirs.float().state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    with torch.no_grad():
        assert gap(again(tokens).logits, theirs(tokens).logits) == 0


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
