"""A new model predicts every token, or class of an image, with about the same probability: its loss is log V."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_kit import MODELS

from regard import recipes
from regard.models import EncoderConfig, GPTConfig, ImageConfig, ModelConfig, Seq2SeqModel, TransformerConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.heads import ClassesHeadConfig
from regard.nn.positions.position import LearnedPositionConfig, SinusoidalConfig

VOCABULARY = {"gpt2-small": 50_257, "enwik8": 256, "translate": 4_099}  # by the beginning of a recipe's name
WIDE: dict[str, Any] = {"vocabulary": 300, "context": 64, "layers": 2, "heads": 8, "width": 512}
VARIANTS: dict[str, ModelConfig] = {
    "untied": GPTConfig(**WIDE, tied=False),
    "no zero_init": GPTConfig(**WIDE, zero_init=False),
    "learned positions": GPTConfig(**WIDE, position=LearnedPositionConfig()),
    "sinusoidal": GPTConfig(**WIDE, position=SinusoidalConfig()),
    "post-norm": GPTConfig(**WIDE, block=PostNormConfig()),
    "encoder": EncoderConfig(**WIDE),
    "transformer": TransformerConfig(**WIDE),
    "transformer, unscaled": TransformerConfig(**WIDE, scaled=False),
    "transformer, post-norm": TransformerConfig(**WIDE, block=PostNormConfig()),
    "transformer, untied": TransformerConfig(**WIDE, tied=False),
}
CLASSES = 10  # of images
ALL = {**{name: config for name, config in MODELS.items() if name != "outside"}, **VARIANTS}


def initial_excess(config: ModelConfig) -> float:
    """The mean loss of a new model on random tokens or images, above that of a uniform guess."""
    torch.manual_seed(1)
    if isinstance(config, ImageConfig):
        head = ClassesHeadConfig(CLASSES, pool="cls" if config.tokens_before else "mean")
        with torch.no_grad():
            scores = (
                replace(config, head=head).build().eval()(torch.randn(8, config.channels, config.image, config.image))
            )
        return torch.nn.functional.cross_entropy(scores, torch.randint(CLASSES, (8,))).item() - math.log(CLASSES)
    model: Any = config.build().eval()
    inputs, targets = torch.randint(config.vocabulary, (2, 8, min(config.context, 32))).unbind()
    source = (inputs[:, :9], torch.full((8,), 9)) if isinstance(model, Seq2SeqModel) else ()
    with torch.no_grad():
        logits = model.head(model.features(inputs, *source))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    return loss - math.log(config.vocabulary)


def recipe(name: str) -> ModelConfig:
    size = next((size for start, size in VOCABULARY.items() if name.startswith(start)), 65)
    model: Any = recipes.get(name).model
    return model if isinstance(model, ImageConfig) else replace(model, vocabulary=size)


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_starts_at_a_uniform_guess(name: str) -> None:
    assert abs(initial_excess(recipe(name))) < 0.1


@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_a_model_starts_at_a_uniform_guess(config: ModelConfig) -> None:
    assert abs(initial_excess(config)) < 0.1
