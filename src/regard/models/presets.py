"""Configs of published models, which `--model NAME` chooses."""

from dataclasses import replace
from typing import Any

from regard.config import add_presets
from regard.models.base import ModelConfig
from regard.models.encoder import EncoderConfig
from regard.models.gpt import GPTConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViTConfig
from regard.nn.blocks.block import PostNormConfig, PreNormConfig
from regard.nn.feedforward import GELUConfig, ReLUConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig, SinusoidalConfig

SHAKESPEARE = GPTConfig()

#: What GPT-2 and BERT have in common.
_SHARED: dict[str, Any] = {
    "layers": 12,
    "heads": 12,
    "width": 768,
    "bias": True,
    "qk_norm": False,
    "zero_init": False,
    "norm": LayerNormConfig(),
    "position": LearnedPositionConfig(),
    "feedforward": GELUConfig(),
}

GPT2 = GPTConfig(vocabulary=50_257, context=1024, block=PreNormConfig(), **_SHARED)  # Radford et al. 2019, table 2


def _gpt3(layers: int, width: int, heads: int) -> GPTConfig:
    return replace(GPT2, context=2048, layers=layers, width=width, heads=heads)  # Brown et al. 2020, table 2.1


BASE = TransformerConfig(
    vocabulary=37_000,  # a joint vocabulary
    context=512,  # longer than any sentence of WMT 2014
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

# Devlin et al. 2019, section 3, without segment embeddings, their norm, the pooler and the head's extra layer. The
# vocabulary is without the mask token.
BERT = EncoderConfig(vocabulary=30_521, context=512, dropout=0.1, block=PostNormConfig(), **_SHARED)

VIT = ViTConfig(image=224, patch=16, layers=12, heads=12, width=768, head=ClassesHeadConfig(1000))

PRESETS: dict[str, ModelConfig] = {
    "shakespeare": SHAKESPEARE,
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
    "bert-base": BERT,
    "bert-large": replace(BERT, layers=24, heads=16, width=1024),
    "vit-8x8": ViTConfig(image=8, channels=1, patch=2, layers=4, heads=4, width=64),  # scikit-learn's digits
    "vit-28x28": ViTConfig(image=28, channels=1, patch=4, layers=6, heads=4, width=128),  # MNIST
    "vit-32x32": ViTConfig(image=32, patch=4, layers=6, heads=4, width=192),  # CIFAR
    "vit-tiny": replace(VIT, heads=3, width=192),  # Touvron et al. 2021, table 1, as "small"
    "vit-small": replace(VIT, heads=6, width=384),
    "vit-base": VIT,  # Dosovitskiy et al. 2021, table 1, as "large"
    "vit-large": replace(VIT, layers=24, heads=16, width=1024),
}
add_presets(ModelConfig, PRESETS)
