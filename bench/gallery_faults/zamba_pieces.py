"""Zamba: a piece of several tokens after the first ignores the cached state of its Mamba layers."""

import copy

import torch
from transformers import ZambaConfig, ZambaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "mamba_d_state": 8}
heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "n_mamba_heads": 2, "mamba_dt_rank": 4}
kinds = {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "use_mamba_kernels": False}
model = ZambaForCausalLM(ZambaConfig(**sizes, **heads, **kinds)).eval()
with torch.no_grad():
    for weight in model.parameters():
        weight.add_(0.2 * torch.randn_like(weight))  # its initial weights are nearly zero
tokens = torch.randint(3, 90, (1, 12))
with torch.no_grad():
    whole = model(input_ids=tokens).logits[:, 6:]
    cache = model(input_ids=tokens[:, :6], use_cache=True).past_key_values
    for size in (1, 6):
        out = model(input_ids=tokens[:, 6 : 6 + size], past_key_values=copy.deepcopy(cache), use_cache=True)
        print("piece of", size, "largest difference", float((out.logits - whole[:, :size]).abs().max()))
