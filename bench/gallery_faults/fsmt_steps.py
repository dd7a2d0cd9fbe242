"""FSMT: with use_cache=True the decoder has no causal mask, so several tokens in one call see each other."""

import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration

torch.manual_seed(0)
sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "langs": ["en", "de"]}
model = FSMTForConditionalGeneration(FSMTConfig(src_vocab_size=96, tgt_vocab_size=96, **sizes, **heads)).eval()
tokens, other = torch.randint(3, 90, (1, 12)), torch.randint(3, 90, (1, 12))
other[:, :6] = tokens[:, :6]
with torch.no_grad():
    for use_cache in (False, True):
        given = {"input_ids": tokens, "use_cache": use_cache}
        one, two = (model(decoder_input_ids=ids, **given).logits[:, :6] for ids in (tokens, other))
        print("use_cache", use_cache, "- later tokens move earlier logits by", float((one - two).abs().max()))
