"""Bamba: decoding without position_ids counts positions from 0 again after each call; `generate` gives them."""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
sizes = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "attn_layer_indices": [1],
}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
model, tokens = BambaForCausalLM(BambaConfig(**sizes, **heads)).eval(), torch.randint(3, 90, (1, 12))
with torch.no_grad():
    whole = model(input_ids=tokens).logits[:, 6:]
    for given in ({}, {"position_ids": torch.arange(6, 12)[None]}):
        cache = model(input_ids=tokens[:, :6], use_cache=True).past_key_values
        step = model(input_ids=tokens[:, 6:], past_key_values=cache, use_cache=True, **given).logits
        print("position_ids" if given else "no position_ids", float((step - whole).abs().max()), "apart")
