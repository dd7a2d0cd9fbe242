"""Unusual healthy runs: extreme sizes, texts, rates and parts. The doctor must raise no alarm on any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_faults.kit import MIXTURE, TOKENS, gpt, noise, training, translation, words

from regard.models import ConvolutionConfig, RecurrentConfig
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, MuonConfig

Make = Callable[[Path], Experiment]
REPEATED = "the quick brown fox jumps over the lazy dog. " * 900


def run(text: str | None = None, model: Any = None, data: dict[str, Any] | None = None, **train: Any) -> Make:
    return lambda folder: training(folder, text, model, train, **(data or {}))


def adamw(lr: float, **more: Any) -> AdamWConfig:
    return AdamWConfig(lr=lr, **more)


UNUSUAL: dict[str, Make] = {
    "context of 2": run(model=gpt(context=2)),
    "context of 5": run(model=gpt(context=5), data={"batch": 16}),
    "random letters": run(noise(3, 40_000)),
    "one sentence again and again": run(REPEATED),
    "two letters": run("ab" * 10_000),
    "little text": run(words(2, 1500), data={"validation": 0.1}, steps=40),
    "tiny rate": run(optimizer=adamw(5e-4), steps=120),
    "huge rate": run(optimizer=adamw(3e-2), steps=120),
    "dropout of a half": run(model=gpt(dropout=0.5)),
    "batch of 1": run(data={"batch": 1}, steps=100),
    "batch of 64": run(data={"batch": 64}, steps=30),
    "no clipping": run(clip=None),
    "clipping at 0.1": run(clip=0.1),
    "accumulation": run(accumulate=4, steps=30),
    "no weight decay": run(optimizer=adamw(5e-3, weight_decay=0.0)),
    "much weight decay": run(optimizer=adamw(5e-3, weight_decay=1.0)),
    "muon": run(optimizer=MuonConfig()),
    "cosine to zero": run(schedule=CosineScheduleConfig(final=0.0)),
    "tied embedding": run(model=gpt(tied=True)),
    "projections start at zero": run(model=gpt(zero_init=True)),
    "one layer, one head": run(model=gpt(layers=1, heads=1)),
    "eight narrow layers": run(model=gpt(layers=8, width=16), steps=40),
    "no positions": run(model=gpt(position="none")),
    "experts": run(model=MIXTURE),
    "gru": run(model=RecurrentConfig(cell="gru", context=32, layers=2, width=32)),
    "lstm that carries its state": run(
        model=RecurrentConfig(cell="lstm", context=16, layers=1, width=32, carry=True), data={"order": "consecutive"}
    ),
    "convolutions": run(model=ConvolutionConfig(context=32, layers=4, width=32, cycle=4)),
    "subwords": run(data={"tokenizer": TOKENS}),
    "checkpointing": run(checkpointing=True, steps=30),
    "three steps": run(steps=3),
    "translation": translation,
}
