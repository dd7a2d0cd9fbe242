"""Jamba: a piece of several tokens after the first ignores the cached state of its Mamba layers."""

import copy

import torch
from transformers import JambaConfig, JambaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8, "mamba_d_state": 8}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 2, "mamba_dt_rank": 4}
model = JambaForCausalLM(JambaConfig(**sizes, **heads, use_mamba_kernels=False)).eval()
tokens = torch.randint(3, 90, (1, 12))
with torch.no_grad():
    whole = model(input_ids=tokens).logits[:, 6:]
    cache = model(input_ids=tokens[:, :6], use_cache=True).past_key_values
    for size in (1, 6):
        out = model(input_ids=tokens[:, 6 : 6 + size], past_key_values=copy.deepcopy(cache), use_cache=True)
        print("piece of", size, "largest difference", float((out.logits - whole[:, :size]).abs().max()))
