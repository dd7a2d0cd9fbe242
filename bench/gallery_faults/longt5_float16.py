"""LongT5: with padding in the source, float16 autocast gives NaN; the mask value -1e10 is -inf in float16."""

import torch
from transformers import LongT5Config, LongT5ForConditionalGeneration

torch.manual_seed(0)
sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
model = LongT5ForConditionalGeneration(LongT5Config(**sizes)).eval()
tokens, mask = torch.randint(3, 90, (1, 24)), (torch.arange(24) < 12)[None].long()
for dtype in (torch.bfloat16, torch.float16):
    with torch.no_grad(), torch.autocast("cpu", dtype):
        logits = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens[:, :4]).logits
    print(dtype, "logits that are not finite:", int((~logits.isfinite()).sum()), "of", logits.numel())
