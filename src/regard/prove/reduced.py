"""A recipe at a size that is tested in seconds: the same model parts, data preparation and task.

Faults of masks, caches and losses do not depend on the width of a model.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.data import DataConfig, PairsConfig, TextConfig
from regard.data.tokenizers.base import LearnedTokenizerConfig
from regard.prove.model_under_test import ModelUnderTest
from regard.prove.randomize_weights import randomize_weights
from regard.train import Experiment

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def reduced_experiment(experiment: Experiment, own_data: bool = False) -> ModelUnderTest:
    """The recipe's model, reduced, with random weights, its task, and its data on random text.

    ``own_data``: on the data that the recipe names; so are data configs of other kinds than text and pairs.
    """
    config = experiment.model.reduced()
    own_data = own_data or not isinstance(experiment.data, PairsConfig | TextConfig)
    if own_data:
        data = experiment.data.build(config.context)
    else:
        with TemporaryDirectory() as folder:  # tokens stay mapped after the folder is removed
            data = _random_text(experiment.data, Path(folder)).build(config.context, Path(folder))
    if data.vocabulary is not None:
        config = replace(config, vocabulary=data.vocabulary)
    text = "its own data" if own_data else "random text, prepared as its own is"
    shape = f"layers {config.layers}, width {config.width}, context {config.context}"
    return ModelUnderTest(
        model=randomize_weights(config.build()),
        data=data,
        task=experiment.task.build(),
        tokenizer=data.tokenizer,
        about=f"the recipe's parts at a reduced size ({shape}) with random weights, on {text}",
    )


def _random_text(config: DataConfig, folder: Path) -> DataConfig:
    """The same data config with a file of random words; learned vocabularies are small."""
    assert isinstance(config, PairsConfig | TextConfig)
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
