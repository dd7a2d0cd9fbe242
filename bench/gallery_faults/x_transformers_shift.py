"""x-transformers, `shift_tokens`: decoding with a cache does not shift in the features of the token before."""

import torch
from x_transformers import Decoder, TransformerWrapper

torch.manual_seed(0)
layers = Decoder(dim=32, depth=2, heads=4, shift_tokens=1)
model, tokens = (
    TransformerWrapper(num_tokens=96, max_seq_len=64, attn_layers=layers).eval(),
    torch.randint(3, 90, (1, 12)),
)
with torch.no_grad():
    whole = model(tokens)[:, -1]
    _, cache = model(tokens[:, :-1], return_intermediates=True)
    step = model(tokens, cache=cache)[:, -1]  # as its AutoregressiveWrapper calls it
print("the last logits with and without a cache:", float((step - whole).abs().max()), "apart")
