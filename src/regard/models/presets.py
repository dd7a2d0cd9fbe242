"""Published sizes, as configs. ``describe`` counts any of them without allocating a weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.models.gpt import GPTConfig
from regard.models.transformer import TransformerConfig
from regard.nn import (
    GELUConfig,
    LayerNormConfig,
    LearnedConfig,
    PostNormConfig,
    PreNormConfig,
    ReLUConfig,
    SinusoidalConfig,
)

LAB = GPTConfig()

GPT2 = GPTConfig(
    vocabulary=50_257,
    context=1024,
    layers=12,
    heads=12,
    width=768,
    bias=True,
    qk_norm=False,
    zero_init=False,
    norm=LayerNormConfig(),
    position=LearnedConfig(),
    feedforward=GELUConfig(),
    block=PreNormConfig(),
)  # Radford et al. 2019, table 2


def _gpt3(layers: int, width: int, heads: int) -> GPTConfig:
    return replace(GPT2, context=2048, layers=layers, width=width, heads=heads)  # Brown et al. 2020, table 2.1


BASE = TransformerConfig(
    vocabulary=37_000,  # both languages' pieces together
    context=512,  # sinusoids have no end; no sentence of WMT 2014 is longer
    layers=6,
    heads=8,
    width=512,
    dropout=0.1,
    attention_dropout=0.0,
    bias=True,
    norm=LayerNormConfig(),
    position=SinusoidalConfig(),
    feedforward=ReLUConfig(),
    block=PostNormConfig(),
)  # Vaswani et al. 2017, table 3

PRESETS: dict[str, Any] = {  # the config of a model each
    "lab": LAB,
    "gpt2": GPT2,
    "gpt2-medium": replace(GPT2, layers=24, heads=16, width=1024),
    "gpt2-large": replace(GPT2, layers=36, heads=20, width=1280),
    "gpt2-xl": replace(GPT2, layers=48, heads=25, width=1600),
    "gpt3-small": _gpt3(12, 768, 12),
    "gpt3-medium": _gpt3(24, 1024, 16),
    "gpt3-large": _gpt3(24, 1536, 16),
    "gpt3-xl": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12_288, 96),
    "transformer-base": BASE,
    "transformer-big": replace(BASE, heads=16, width=1024, dropout=0.3),
}


def describe(config: GPTConfig | TransformerConfig) -> dict[str, Any]:
    """Parameters and memory of a model of this config, from shapes alone (the meta device holds no data).

    An encoder-decoder's figures per token are for one of the source and one of the target together.

    >>> describe(PRESETS["gpt3-175b"])["parameters"] // 10**9
    174
    """
    with torch.device("meta"):
        model = config.build()
    total = sum(p.numel() for p in model.parameters())
    idle = sum(getattr(module, "idle", 0) for module in model.modules())  # experts that a token does not meet
    if isinstance(config, TransformerConfig):
        attentions, cache = config.layers + 2 * config.depth, 4 * config.depth * config.width
    else:
        kept = config.projection.remembered(config.width, config.heads, config.kv_heads or config.heads)
        attentions, cache = config.layers, config.layers * kept
    return {
        "parameters": total,
        "parameters_in_blocks": sum(p.numel() for block in model.blocks for p in block.parameters()),
        "bytes_float32": 4 * total,
        "bytes_bfloat16": 2 * total,
        "cache_elements_per_token": cache,
        "flops_per_token": 6 * (total - idle) + 12 * attentions * config.width * config.context,
    }
