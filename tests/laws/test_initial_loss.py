"""A new model predicts every token, or class of an array, with about the same probability: its loss is log V."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_kit import MODELS

from regard import recipes
from regard.errors import UserError
from regard.models import (
    DetectorConfig,
    EncoderConfig,
    ForecasterConfig,
    GPTConfig,
    ModelConfig,
    Seq2SeqModel,
    TransformerConfig,
)
from regard.nn.blocks.block import PostNormConfig
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
CLASSES = 10  # of arrays
ALL = {**{name: config for name, config in MODELS.items() if name != "outside"}, **VARIANTS}


def initial_excess(config: ModelConfig) -> float:
    """The mean loss of a new model on random tokens or arrays, above that of a uniform guess."""
    torch.manual_seed(1)
    if config.reads != "text":
        model: Any = classifier(config).build().eval()
        parts = torch.randint(64, (8, model.config.context - model.before))
        with torch.no_grad():
            scores = model(*model.inputs_of(parts))
        return (scores.logsumexp(1) - scores.mean(1)).mean().item() - math.log(CLASSES)  # over all classes
    model = config.build().eval()
    inputs, targets = torch.randint(config.vocabulary, (2, 8, min(config.context, 32))).unbind()
    source = (inputs[:, :9], torch.full((8,), 9)) if isinstance(model, Seq2SeqModel) else ()
    with torch.no_grad():
        logits = model.head(model.features(inputs, *source))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    return loss - math.log(config.vocabulary)


def classifier(config: ModelConfig) -> ModelConfig:
    """The model with a head for classes of whole arrays; a ``UserError`` if it has none."""
    return config.with_classes(tuple(map(str, range(CLASSES))))


def guesses(config: ModelConfig) -> bool:
    """The model chooses between tokens or classes, and not numbers, boxes or pairs."""
    if config.reads == "text" or isinstance(config, DetectorConfig | ForecasterConfig):
        return config.reads == "text"
    try:
        return classifier(config) is not None
    except UserError:
        return False


def recipe(name: str) -> ModelConfig:
    size = next((size for start, size in VOCABULARY.items() if name.startswith(start)), 65)
    model: Any = recipes.get(name).model
    return replace(model, vocabulary=size) if model.reads == "text" else model


@pytest.mark.parametrize("name", [name for name in recipes.names() if guesses(recipes.get(name).model)])
def test_a_recipe_starts_at_a_uniform_guess(name: str) -> None:
    assert abs(initial_excess(recipe(name))) < 0.1


@pytest.mark.parametrize("name", [name for name, config in ALL.items() if guesses(config)])
def test_a_model_starts_at_a_uniform_guess(name: str) -> None:
    assert abs(initial_excess(ALL[name])) < 0.1
