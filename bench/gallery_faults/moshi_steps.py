"""Moshi: decoding token by token differs from the full pass after as many tokens as its sliding window."""

import torch
from transformers import MoshiConfig, MoshiForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64}
model = MoshiForCausalLM(MoshiConfig(**sizes, num_key_value_heads=2, head_dim=8, sliding_window=16)).double().eval()
tokens, cache, steps = torch.randint(3, 90, (1, 24)), None, []
with torch.no_grad():
    whole = model(input_ids=tokens).logits
    for token in tokens.split(1, dim=1):
        out = model(input_ids=token, past_key_values=cache, use_cache=True)
        cache, steps = out.past_key_values, [*steps, out.logits]
difference = (torch.cat(steps, 1) - whole).abs().amax(-1)[0]
print("positions that differ:", difference.gt(1e-9).nonzero().flatten().tolist(), float(difference.max()))
