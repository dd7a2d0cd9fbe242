"""The certificate's differences to `transformers`, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import randomized

from regard.convert.compare import layer_differences
from regard.convert.hub import read_hub

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 61, "pad_token_id": 0}
SIZES = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
TWO = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2}
TWO |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 0}
CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 24, "n_head": 2, "n_layer": 2}, ["blocks.0", "blocks.1", "logits"]),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 1}, ["blocks.0", "blocks.1", "logits"]),
    "bert": ("BertForMaskedLM", SIZES, ["blocks.0", "blocks.1", "logits"]),
    "bert without a head": ("BertModel", SIZES, ["blocks.0", "blocks.1"]),
    "bart": ("BartForConditionalGeneration", TWO, ["encoder.0", "encoder.1", "decoder.0", "logits"]),
}


@pytest.mark.parametrize(("name", "fields", "layers"), CASES.values(), ids=CASES)
def test_every_layer_is_compared_and_a_wrong_one_is_seen(
    name: str, fields: dict[str, Any], layers: list[str], tmp_path: Path
) -> None:
    kind = getattr(transformers, name)
    randomized(kind(kind.config_class(**SMALL | fields))).save_pretrained(tmp_path)
    given = read_hub(tmp_path)
    found = layer_differences(tmp_path, given)
    assert list(found) == layers
    assert max(found.values()) < 1e-4
    changed = next(weight for key, weight in given.weights.items() if layers[1] in key and weight.ndim == 2)
    with torch.no_grad():
        changed.mul_(1.5)  # our weights, not the file's
    found = layer_differences(tmp_path, given)
    assert found[layers[0]] < 1e-4 < found[layers[1]]
