"""A recipe at a size that is tested in seconds: the same model parts, data preparation and task.

Faults of masks, caches and losses do not depend on the width of a model.
"""

import math
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import nn

from regard.data import PairsConfig, TextConfig
from regard.data.tokenizers.base import LearnedTokenizerConfig
from regard.prove.model_under_test import ModelUnderTest
from regard.train import Experiment

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Module = TypeVar("Module", bound=nn.Module)


def reduced_experiment(experiment: Experiment, own_data: bool = False) -> ModelUnderTest:
    """The recipe's model, reduced, with random weights, its task, and its data on random text.

    ``own_data``: on the data that the recipe names; so are data configs of other kinds than text and pairs.
    """
    config, given = experiment.model.reduced(), experiment.data
    if not own_data and isinstance(given, PairsConfig | TextConfig):
        text = "random text, prepared as its own is"
        with TemporaryDirectory() as folder:  # tokens stay mapped after the folder is removed
            data = _random_text(given, Path(folder)).build(config.context, Path(folder))
    else:
        text, data = "its own data", given.build(config.context)
    task = experiment.task.fit(data)
    config = task.model_for(config.reading(data.vocabulary, data.shape), data)
    shape = f"layers {config.layers}, width {config.width}, context {config.context}"
    return ModelUnderTest(
        randomize_weights(config.build()),
        data=data,
        task=task.build(),
        tokenizer=data.tokenizer,
        about=f"the recipe's parts at a reduced size ({shape}) with random weights, on {text}",
    )


def _random_text(config: PairsConfig | TextConfig, folder: Path) -> PairsConfig | TextConfig:
    """The same data config with a file of random words; learned vocabularies are small."""
    tokenizer = config.tokenizer
    if isinstance(tokenizer, LearnedTokenizerConfig):
        tokenizer = replace(tokenizer, vocabulary=min(300, tokenizer.vocabulary))
    draw = random.Random(8)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 9))) for _ in range(4000)]
    if isinstance(config, PairsConfig):
        lines = [f"{' '.join(draw.choices(words, k=4))}\t{' '.join(draw.choices(words, k=4))}" for _ in range(160)]
        path = folder / "pairs.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return replace(config, path=str(path), validation=0.1, test=0.1, tokenizer=tokenizer)
    path = folder / "text.txt"
    path.write_text(" ".join(words)[:20000], encoding="utf-8")
    return replace(config, path=str(path), limit=None, tokenizer=tokenizer)


@torch.no_grad()
def randomize_weights(model: Module) -> Module:
    """The model with random weights everywhere: gains around 1, biases around 0, matrices that keep a variance of 1.

    At initialization much of a model is zero or tiny, and so would a leak be.
    """
    generator = torch.Generator().manual_seed(5)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    norms = [part for part in model.modules() if "norm" in type(part).__name__.lower()]
    gains = {id(weight) for part in norms for name, weight in part.named_parameters(recurse=False) if name == "weight"}
    for name, weight in model.named_parameters():
        if not weight.is_floating_point():
            continue
        fan = max(1, math.prod(weight.shape[1:]))
        spread = 1.0 if id(weight) in tables else fan**-0.5 if weight.ndim > 1 else 0.2
        gain = (id(weight) in gains and weight.ndim == 1) or name.endswith("gain")
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float32) * spread
        weight.copy_((drawn + float(gain)).to(weight))
    return model
