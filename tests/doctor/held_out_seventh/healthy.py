"""Twenty healthy but unusual runs: none of them may have a finding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import held_out_made as made
from held_out_cases import ADAMW, DIGITS, PAIRS, REVIEWS, TEXT, Arguments, Case


def _text(*more: str) -> Arguments:
    return lambda folder: [*TEXT, *more]


def _recipe(*arguments: str) -> Arguments:
    return lambda folder: list(arguments)


def _noise(folder: Path) -> Sequence[str]:
    return [*TEXT, f"--data.path={made.noise(folder / 'noise.txt')}", "--data.limit=none"]


def _log(folder: Path) -> Sequence[str]:
    return [*TEXT, f"--data.path={made.log_lines(folder / 'server.log.txt')}", "--data.limit=none"]


def _pairs(folder: Path) -> Sequence[str]:
    return [*PAIRS, f"--data.path={made.pairs(folder / 'pairs.tsv')}", "--task.smoothing=0.3", "--train.clip=none"]


def _rare_class(folder: Path) -> Sequence[str]:
    given = made.reviews(folder / "reviews.csv", share=0.2)
    return [*REVIEWS, f"--data.path={given}", "--data.tokens=none", "--task.balanced=true", "--train.steps=300"]


def _lora(folder: Path) -> Sequence[str]:
    return [
        *("shakespeare-small", f"--init={folder.parent / 'adapters-base'}", "--train.adapt=lora", *ADAMW),
        *(f"--data.path={made.prose(folder / 'prose.txt', count=60_000)}", "--data.tokenizer=characters"),
        *("--train.steps=200", "--train.evaluate_every=50"),
    ]


def _prose(folder: Path) -> Sequence[str]:
    return [*TEXT, f"--data.path={made.prose(folder / 'prose.txt')}", "--data.limit=none", "--train.steps=100"]


HEALTHY = [
    Case("tiny_context", _text("--model.context=4", "--data.batch=64")),
    Case("random_text", _noise),
    Case("repetitive_log", _log),
    Case("tiny_learning_rate", _text("--train.optimizer=adamw", "--train.optimizer.lr=1e-4", "--train.steps=400")),
    Case(
        "large_learning_rate",
        _text("--train.optimizer=adamw", "--train.optimizer.lr=2e-2", "--train.schedule=linear"),
    ),
    Case("dropout_of_one_half", _text("--model.dropout=0.5")),
    Case("batch_of_one", _text("--data.batch=1", "--model.context=128")),
    Case("one_narrow_layer", _text("--model.layers=1", "--model.heads=1", "--model.width=16")),
    Case(
        "wide_vocabulary",
        _text("--data.tokenizer=words", "--data.tokenizer.vocabulary=8000", "--model.width=32", "--model.tied=false"),
    ),
    Case("digits_mixed", lambda folder: [*DIGITS, "--data.mixup=0.8", "--data.crop=1", "--task.smoothing=0.2"]),
    Case("translation_without_clipping", _pairs),
    Case(
        "experts",
        _recipe(
            *("shakespeare-moe", "--model.layers=2", "--model.heads=2", "--model.width=32", "--model.context=64"),
            *("--data.limit=400000", "--train.steps=150", "--train.evaluate_every=50"),
        ),
    ),
    Case("long_warmup", _text("--train.schedule=constant", "--train.schedule.warmup=0.9")),
    Case(
        "no_decay_no_clipping",
        _text(*ADAMW, "--train.optimizer.weight_decay=0", "--train.optimizer.betas=0.9,0.999", "--train.clip=none"),
    ),
    Case("digits_by_muon", lambda folder: [*DIGITS, "--train.optimizer=muon", "--data.batch=256"]),
    Case(
        "gru_with_carried_state",
        _recipe(
            *("shakespeare-gru", "--model.width=64", "--model.context=32", "--model.carry=true"),
            *("--data.order=consecutive", "--data.limit=400000", "--train.steps=200", "--train.evaluate_every=50"),
        ),
    ),
    Case("alibi_after_norm", _text(*ADAMW, "--model.position=alibi", "--model.block=post-norm", "--model.norm=layer")),
    Case("accumulation_of_eight", _text("--train.accumulate=8", "--data.batch=2", "--train.steps=150")),
    Case("rare_class_balanced", _rare_class),
    Case("adapters", _lora, before=_prose),
]
