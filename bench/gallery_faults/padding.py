"""Masked language models whose logits depend on padding that attention_mask marks."""

import torch
from transformers import (
    ConvBertConfig,
    ConvBertForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    MobileBertConfig,
    MobileBertForMaskedLM,
    NystromformerConfig,
    NystromformerForMaskedLM,
    YosoConfig,
    YosoForMaskedLM,
)

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
HEADS = {"num_attention_heads": 4}
MODELS = {
    ConvBertForMaskedLM: ConvBertConfig(**SMALL, **HEADS, embedding_size=32),  # convolutions reach into the padding
    FNetForMaskedLM: FNetConfig(**SMALL),  # the Fourier transform mixes all positions; there is no mask
    MobileBertForMaskedLM: MobileBertConfig(**SMALL, **HEADS, embedding_size=32, intra_bottleneck_size=32),  # trigrams
    NystromformerForMaskedLM: NystromformerConfig(**SMALL, **HEADS, num_landmarks=24, segment_means_seq_len=24),
    YosoForMaskedLM: YosoConfig(**SMALL, **HEADS, use_expectation=True),  # convolution and normalization
}
for kind, config in MODELS.items():
    torch.manual_seed(0)
    model = kind(config).eval()
    tokens = torch.randint(8, 90, (1, 24))
    mask = (torch.arange(24) < 12)[None].long()
    names = kind.forward.__code__.co_varnames
    given = {"attention_mask": mask} if "attention_mask" in names else {}
    with torch.no_grad():
        two = [model(input_ids=tokens.masked_fill(mask == 0, filler), **given).logits[:, :12] for filler in (1, 7)]
    print(kind.__name__, "another padding token moves real logits by", float((two[0] - two[1]).abs().max()))
