"""Gradient accumulation over real datasets: batch b, accumulated a times, is the update of batch a*b."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data import PairsConfig, TextConfig
from regard.models import EncoderConfig, GPTConfig, RecurrentConfig, TransformerConfig
from regard.parallel.world import World
from regard.tasks import LanguageConfig, MaskedTokensConfig, TranslationConfig
from regard.train import Experiment, TrainConfig
from regard.train.engine import Engine
from regard.train.optimizer import AdamWConfig

SMALL: dict[str, Any] = {"context": 8, "layers": 1, "width": 8, "dropout": 0.0}


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat; a rat ran at the cat. " * 20, encoding="utf-8")
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    path = tmp_path / "pairs.tsv"
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = [" ".join(words[i % 7 : i % 7 + 1 + i % 3]) + f" {i}\t" + " ".join(words[: 1 + i % 5]) for i in range(40)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def experiments(text: str, pairs: str) -> dict[str, Experiment]:
    gpt = GPTConfig(heads=2, zero_init=False, **SMALL)
    lstm = RecurrentConfig(cell="lstm", carry=True, **SMALL)
    translation = TransformerConfig(heads=2, **{**SMALL, "context": 32})
    data = PairsConfig(path=pairs, batch=96, validation=0.1, test=0.0, near=100)
    train = TrainConfig(steps=20, optimizer=AdamWConfig(lr=1e-2), device="cpu")
    windows = TextConfig(path=text, batch=8)
    return {
        "random windows": Experiment(gpt, windows, LanguageConfig(), train),
        "consecutive windows": Experiment(gpt, replace(windows, order="consecutive"), LanguageConfig(), train),
        "carried state": Experiment(lstm, replace(windows, order="consecutive"), LanguageConfig(), train),
        "masked tokens": Experiment(EncoderConfig(heads=2, **SMALL), windows, MaskedTokensConfig(), train),
        "pairs": Experiment(translation, data, TranslationConfig(), train),
    }


def trained(experiment: Experiment, parts: int) -> Engine:
    smaller: Any = replace(experiment.data, batch=experiment.data.batch // parts)  # type: ignore[type-var]
    experiment = replace(experiment, data=smaller, train=replace(experiment.train, accumulate=parts))
    data = experiment.data.build(experiment.model.context)
    engine = Engine(replace(experiment, model=experiment.model_for(data)), data, World())
    engine.model.double()
    for _ in range(15):  # more than an epoch of consecutive windows
        engine.update()
    return engine


@pytest.mark.parametrize("kind", ["random windows", "consecutive windows", "carried state", "masked tokens", "pairs"])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_are_parts_of_one_batch(kind: str, parts: int, text: str, pairs: str) -> None:
    experiment = experiments(text, pairs)[kind]
    whole, cut = trained(experiment, 1), trained(experiment, parts)
    assert whole.progress.tokens == cut.progress.tokens
    for (name, p), q in zip(whole.model.named_parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-9, msg=name)
