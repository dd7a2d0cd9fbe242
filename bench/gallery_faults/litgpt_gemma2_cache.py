"""litgpt, Gemma 2: with a KV cache the boolean mask is added to the scores, so every token sees the whole cache."""

import torch
from litgpt import GPT, Config

torch.manual_seed(0)
sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "head_size": 8, "n_query_groups": 2, "intermediate_size": 64}
model = GPT(Config.from_name("Gemma-2-2b", **sizes, vocab_size=96, padded_vocab_size=96, block_size=64)).eval()
tokens, places = torch.randint(3, 90, (1, 12)), torch.arange(12)
other = tokens.clone()
other[:, 6:] = 5
with torch.no_grad():
    without = (model(tokens) - model(other))[:, :6].abs().max()
    model.set_kv_cache(1)
    cached = (model(tokens, input_pos=places) - model(other, input_pos=places))[:, :6].abs().max()
print("later tokens move earlier logits by", float(without), "without a cache and by", float(cached), "with one")
