"""An experiment made small: the same parts, data cut and tasks, at a size that is judged in seconds.

Which mask, cache or loss is wrong does not depend on how wide a model is.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regard.data import PairsConfig, TextConfig
from regard.data.tokenizers.base import LearnedTokenizerConfig
from regard.prove.randomize_weights import lively
from regard.train import Experiment

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def small_arguments(experiment: Experiment, own: bool = False) -> dict[str, Any]:
    """What ``certify`` judges of a recipe: the model with lively weights, its task, and its data on a made-up text.

    ``own``: on the text that the recipe names.
    """
    model = experiment.model.reduced()
    if own:
        data: Any = experiment.data.build(model.context)
    else:
        with TemporaryDirectory() as folder:  # tokens stay mapped after it is gone
            data = _small_data(experiment.data, Path(folder)).build(model.context, Path(folder))
    if data.vocabulary is not None:
        model = replace(model, vocabulary=data.vocabulary)
    built = lively(model.build())
    shape = ", ".join(
        f"{name} {getattr(model, name)}" for name in ("layers", "heads", "width", "context") if hasattr(model, name)
    )
    text = "its own data" if own else "a made-up text, cut as its own is"
    about = f"the recipe's parts made small ({shape}) with random weights, on {text}"
    task = experiment.task.build()
    return {"model": built, "data": data, "task": task, "tokenizer": data.tokenizer, "about": about}


def _small_data(config: Any, folder: Path) -> Any:
    """The same data on a text of our own; learned vocabularies are small."""
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
    assert isinstance(config, TextConfig)
    path = folder / "text.txt"
    path.write_text(" ".join(words)[:20000], encoding="utf-8")
    return replace(config, path=str(path), limit=None, tokenizer=tokenizer)
