"""BLT: with a cache it decodes other tokens than without; its global transformer sees only the newest patches."""

import torch
from transformers import BltConfig, BltForCausalLM

torch.manual_seed(0)
small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
local = small | {"vocab_size": 96, "hidden_size_global": 32}
parts = {"patcher_config": small | {"vocab_size": 96}, "encoder_config": local, "decoder_config": local}
config = BltConfig(vocab_size=96, num_hidden_layers=2, encoder_hash_byte_group_vocab=96, global_config=small, **parts)
model, tokens = BltForCausalLM(config).double().eval(), torch.randint(3, 90, (1, 13))
with torch.no_grad():
    whole = model(input_ids=tokens, use_cache=False).logits[:, -1]
    cache = model(input_ids=tokens[:, :-1], use_cache=True).past_key_values
    step = model(input_ids=tokens[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
print("the last logits with and without a cache:", float((whole - step).abs().max()), "apart")
