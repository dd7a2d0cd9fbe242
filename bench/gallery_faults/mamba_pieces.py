"""Mamba and FalconMamba: a piece of several tokens after the first ignores the cached state; single ones are right."""

import copy

import torch
from transformers import FalconMambaConfig, FalconMambaForCausalLM, MambaConfig, MambaForCausalLM

for config, kind in ((MambaConfig, MambaForCausalLM), (FalconMambaConfig, FalconMambaForCausalLM)):
    torch.manual_seed(0)
    model = kind(config(vocab_size=96, hidden_size=32, state_size=8, num_hidden_layers=2)).double().eval()
    tokens = torch.randint(3, 90, (1, 12))
    with torch.no_grad():
        whole = model(input_ids=tokens).logits[:, 6:]
        cache = model(input_ids=tokens[:, :6], use_cache=True).cache_params
        for size in (1, 6):
            piece = model(input_ids=tokens[:, 6 : 6 + size], cache_params=copy.deepcopy(cache), use_cache=True).logits
            print(kind.__name__, "piece of", size, "largest difference", float((piece - whole[:, :size]).abs().max()))
