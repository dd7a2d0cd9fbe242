"""Real and made data of every kind, and faults of them with the finding that each must cause."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import (
    ArrayBatch,
    ClassesConfig,
    ImagesConfig,
    LabeledBatch,
    PairsConfig,
    SeriesConfig,
    SignalData,
    TagsConfig,
    TextConfig,
)
from regard.data.signals.arrays import Signals
from regard.doctor import Finding, all_checks
from regard.doctor.context import TrainingRun
from regard.doctor.data_check import DataCheck
from regard.models import GPTConfig
from regard.train import Experiment

SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "su", "ta", "ve", "zo")


def judged(data: Any, config: Any, task: Any = None) -> list[Finding]:
    """What the checks of the data find."""
    experiment = Experiment(GPTConfig(vocabulary=max(data.vocabulary or 2, 2), context=32), data=config)
    run = TrainingRun(experiment if task is None else replace(experiment, task=task), data=data)
    checks = [check for check in all_checks().values() if issubclass(check, DataCheck)]
    return [finding for check in checks for finding in check(run).judge(run.examples)]


def named(found: list[Finding]) -> list[str]:
    return [f"{one.kind}: {one.where}" for one in found]


# Images: scikit-learn's handwritten digits.


def digits(**options: Any) -> Any:
    return ImagesConfig(source="digits", batch=64, **options).build(0)


def change_validation(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Changes the batches of the validation part."""

    def fault(data: Any) -> None:
        real = data.part_batch

        def part_batch(part: str, numbers: Any, *, counts: bool = True) -> Any:
            batch = real(part, numbers, counts=counts)
            return batch if part == "train" else batch._replace(inputs=change(batch.inputs))

        data.part_batch = part_batch

    return fault


def change_training(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Changes the training batches."""

    def fault(data: Any) -> None:
        real = data.train_batch
        data.train_batch = lambda numbers, random: change(real(numbers, random))

    return fault


def relabel_validation(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def fault(data: Any) -> None:
        data.validation = data.validation._replace(labels=change(data.validation.labels))

    return fault


def exchange(labels: Any) -> Any:
    return np.select([labels == 3, labels == 7], [7, 3], labels)


def shuffle(labels: Any) -> Any:
    return np.random.default_rng(1).permutation(labels)


def noise_in_training(data: Any) -> None:
    draw, labels = np.random.default_rng(1), data.train.labels.copy()
    wrong = draw.random(len(labels)) < 0.3
    labels[wrong] = draw.integers(0, 10, wrong.sum())
    data.train = data.train._replace(labels=labels)


def sort_by_class(data: Any) -> None:
    data._order = lambda seed, epoch, total: np.argsort(data.train.labels, kind="stable")


def leave_out_a_class(data: Any) -> None:
    kept, real = np.flatnonzero(data.train.labels != 4), data.train_batch
    data.train_batch = lambda numbers, random: real(kept[numbers % len(kept)], random)


def validate_on_few_classes(data: Any) -> None:
    data.validation = data.validation.pick(np.flatnonzero(data.validation.labels < 8))
    data.validation_count = len(data.validation.labels)


def mark_the_class(data: Any) -> None:
    for part in (data.train, data.validation):
        part.images[:, 0, 0, 0] = 20 * part.labels


def copy_training(data: Any) -> None:
    data.validation = data.train.pick(np.arange(0, 600, 4))
    data.validation_count = len(data.validation.labels)


IMAGE_FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "validation labels shuffled": (relabel_validation(shuffle), "label_fault: validation labels"),
    "validation labels numbered from 1": (relabel_validation(lambda y: (y + 1) % 10), "label_fault: validation labels"),
    "two classes exchanged": (relabel_validation(exchange), "label_fault: validation labels, 7, 3"),
    "wrong training labels": (noise_in_training, "label_fault: training labels"),
    "labels of batches rolled": (
        change_training(lambda batch: batch._replace(targets=batch.targets.roll(1, 0))),
        "label_fault: training batches, labels",
    ),
    "scaled": (change_validation(lambda x: (x + 1) / 2), "input_fault: validation inputs"),
    "inverted": (change_validation(lambda x: -x), "input_fault: validation inputs"),
    "transposed": (change_validation(lambda x: x.transpose(2, 3)), "input_fault: validation inputs"),
    "upside down": (change_validation(lambda x: x.flip(2)), "input_fault: validation inputs"),
    "not scaled": (change_validation(lambda x: (x + 1) * 127.5), "input_fault: validation inputs"),
    "batches not scaled": (
        change_training(lambda batch: batch._replace(inputs=(batch.inputs + 1) * 127.5)),
        "input_fault: training batches, inputs",
    ),
    "batches inverted": (
        change_training(lambda batch: batch._replace(inputs=-batch.inputs)),
        "input_fault: training batches, inputs",
    ),
    "batches without content": (
        change_training(lambda batch: batch._replace(inputs=torch.zeros_like(batch.inputs))),
        "input_fault: training batches, inputs",
    ),
    "batches scaled twice": (
        change_training(lambda batch: batch._replace(inputs=(batch.inputs + 1) / 127.5 - 1)),
        "input_fault: training batches, inputs",
    ),
    "the class is a pixel": (mark_the_class, "input_fault: training batches, inputs"),
    "trained on validation": (copy_training, "input_fault: validation inputs"),
    "sorted by class": (sort_by_class, "class_order: training batches, order of the examples"),
    "no example of a class": (leave_out_a_class, "class_order: training batches, class 4"),
    "no class in validation": (validate_on_few_classes, "class_order: validation, class"),
}


HEALTHY_IMAGES: list[dict[str, Any]] = [
    {},
    {"mixup": 0.8, "crop": 1},
    {"flip": True, "erase": 0.5},
    {"affine": 1.0, "color": 0.4},
    {"crop": 2, "cutmix": 0.5},
    {"limit": 60},
    {"limit": 5},
    {"validation": 0.0},
    {"validation": 0.5},
]


# Series and sounds with classes: made.


@cache
def parts_of_signals(sound: bool = False, seed: int = 1) -> tuple[Signals, ...]:
    """Three classes of curves with three channels, or of sounds, of different lengths."""
    draw = np.random.default_rng(seed)

    def one(label: int) -> Any:
        length = int(draw.integers(2000, 3000)) if sound else int(draw.integers(30, 50))
        time = np.arange(length)
        tone = (0.1 + 0.1 * label) * (1 + 0.1 * draw.standard_normal())
        channels = (
            [np.sin(tone * time + draw.random())]
            if sound
            else [np.sin(tone * time) + 0.5, 2 * np.cos(0.1 * time + label) - 1, 0.1 * label * time / length + 1.5]
        )
        rows = np.stack(channels, 1)
        return (rows + 0.1 * draw.standard_normal(rows.shape)).astype(np.float32)

    def part(count: int) -> Signals:
        labels = draw.integers(0, 3, count)
        return Signals.of((one(int(label)) for label in labels), labels.tolist())

    return part(240), part(60), part(12)


def signals(sound: bool = False, **changes: Any) -> Any:
    return SignalData(parts_of_signals(sound), ("a", "b", "c"), name="made", **changes)  # type: ignore[arg-type]


def change_signals(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def fault(data: Any) -> None:
        given = data.parts["validation"]
        data.parts["validation"] = Signals(tuple(change(one) for one in given.values), given.targets)

    return fault


def shuffle_signals(data: Any) -> None:
    given = data.parts["validation"]
    order = np.random.default_rng(2).permutation(len(given.targets))
    data.parts["validation"] = Signals(given.values, tuple(given.targets[n] for n in order))


SIGNAL_FAULTS: dict[str, tuple[bool, Callable[[Any], None], str]] = {
    "labels shuffled": (False, shuffle_signals, "label_fault: validation labels"),
    "channels exchanged": (False, change_signals(lambda x: x[:, [1, 0, 2]]), "input_fault: validation inputs"),
    "scaled": (False, change_signals(lambda x: 5 * x), "input_fault: validation inputs"),
    "every other point": (False, change_signals(lambda x: x[::2]), "input_fault: validation inputs"),
    "sounds at another rate": (True, change_signals(lambda x: x[::2]), "input_fault: validation inputs"),
    "labels of sounds shuffled": (True, shuffle_signals, "label_fault: validation labels"),
    "sounds in units of a sample": (True, change_signals(lambda x: x * 32768), "input_fault: validation inputs"),
}


# Labelled texts: made reviews and made tags.


def words(count: int, seed: int) -> list[str]:
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found["".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))] = None
    return list(found)


def reviews(folder: Path, *, noise: float = 0.0, count: int = 1200, share: float = 0.5, copies: int = 1) -> Path:
    """Texts of 30 to 50 words; the last one decides the class. ``copies`` of each have two other words."""
    draw, filler, path = random.Random(4), words(80, 5), folder / "reviews.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "label"))
        for _ in range(count):
            good = draw.random() < share
            text = " ".join(draw.choices(filler, k=draw.randint(30, 50)))
            last = draw.choice(("loved", "adored", "praised") if good else ("hated", "despised", "refunded"))
            wrong = draw.random() < noise
            for _ in range(copies):
                changed = text.split()
                for place in draw.sample(range(len(changed)), 2 if copies > 1 else 0):
                    changed[place] = draw.choice(filler)
                rows.writerow((f"{' '.join(changed)} i {last} it", "good" if good != wrong else "bad"))
    return path


def classes(folder: Path, **options: Any) -> tuple[Any, Any]:
    made = {name: options.pop(name) for name in ("noise", "share", "count", "copies") if name in options}
    config = ClassesConfig(path=str(reviews(folder, **made)), validation=0.2, batch=2048, **options)
    return config.build(128), config


def change_validation_texts(change: Callable[[LabeledBatch], LabeledBatch]) -> Callable[[Any], None]:
    def fault(data: Any) -> None:
        real = data.validation_batches
        data.validation_batches = lambda *given, **options: (change(batch) for batch in real(*given, **options))

    return fault


def noise_in_training_texts(data: Any) -> None:
    draw, targets = np.random.default_rng(1), data.train.targets.tokens
    wrong = draw.random(len(targets)) < 0.3
    targets[wrong] = 1 - targets[wrong]


TEXT_FAULTS: dict[str, tuple[dict[str, Any], Callable[[Any], Any], str]] = {
    "labels exchanged": (
        {},
        change_validation_texts(lambda batch: batch._replace(targets=1 - batch.targets)),
        "label_fault: validation labels",
    ),
    "labels rolled": (
        {},
        change_validation_texts(lambda batch: batch._replace(targets=batch.targets.roll(1, 0))),
        "label_fault: validation labels",
    ),
    "other numbers of tokens": (
        {},
        change_validation_texts(lambda batch: batch._replace(inputs=(batch.inputs * 7 + 3) % 500)),
        "input_fault: validation inputs",
    ),
    "wrong training labels": ({"count": 3000}, noise_in_training_texts, "label_fault: training labels"),
    "copies with other words": ({"copies": 6, "count": 200}, lambda data: None, "input_fault: validation inputs"),
    "weights by frequency": ({"share": 0.2}, lambda data: None, "class_order: task.weights"),
    "cut to 16 tokens": ({"tokens": 16, "keep": "start"}, lambda data: None, "truncation: --data.tokens"),
}


def tags(folder: Path) -> tuple[Any, Any]:
    """Sentences whose words have a tag each."""
    draw, known, path = random.Random(1), words(120, 2), folder / "tags.conll"
    lines = [
        "".join(f"{(word := draw.choice(known))} T{known.index(word) % 5}\n" for _ in range(draw.randint(4, 12)))
        for _ in range(400)
    ]
    path.write_text("\n".join(lines))
    config = TagsConfig(path=str(path), validation=0.2, batch=1024)
    return config.build(64), config


# Pairs: made translations, word by word and backwards.


def pairs(folder: Path, change: Callable[[list[str]], list[str]] = list, **options: Any) -> tuple[Any, Any]:
    draw, source, target = random.Random(1), words(100, 2), words(100, 3)
    chosen = [[draw.randrange(100) for _ in range(draw.randint(3, 9))] for _ in range(2000)]
    ours = [" ".join(source[n] for n in one) for one in chosen]
    theirs = change([" ".join(f"{target[n]}x" for n in reversed(one)) for one in chosen])
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(ours, theirs, strict=True)))
    config = PairsConfig(path=str(path), near=100, batch=1024, validation=0.1, **options)
    return config.build(64), config


PAIR_FAULTS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a line lost": (lambda lines: lines[1:] + lines[:1], "a line was lost"),
    "three lines added": (lambda lines: lines[-3:] + lines[:-3], "shifted by 3 lines"),
    "shuffled": (lambda lines: random.Random(5).sample(lines, len(lines)), "mixed up"),
}


# Series to forecast: a made table.


def series(folder: Path, **options: Any) -> tuple[Any, Any]:
    draw, time = np.random.default_rng(1), np.arange(900)
    noise = 0.02 * draw.standard_normal((900, 2)).cumsum(0)
    table = np.stack([np.sin(time / 12), time / 300 + np.cos(time / 5)], 1) + noise
    path = folder / "series.csv"
    path.write_text("a,b\n" + "".join(f"{a:.6f},{b:.6f}\n" for a, b in table))
    config = SeriesConfig(path=str(path), points=48, horizon=12, batch=32, **options)
    return config.build(0), config


def change_windows(change: Callable[[Any, Any, Any], ArrayBatch]) -> Callable[[Any], None]:
    """``change``: of the data, the first targets [B] and the batch."""

    def fault(data: Any) -> None:
        real = data.part_batch
        data.part_batch = lambda part, numbers, **options: change(
            data, data.starts[part] + numbers, real(part, numbers, **options)
        )

    return fault


def future_at(gap: int) -> Callable[[Any], None]:
    def change(data: Any, first: Any, batch: Any) -> Any:
        places = np.minimum(first[:, None] + gap + np.arange(data.horizon), len(data.rows) - 1)
        return batch._replace(targets=torch.from_numpy(data.rows[places]))

    return change_windows(change)


def scale_by_everything(data: Any) -> None:
    data.rows = ((data.rows - data.rows.mean(0)) / data.rows.std(0)).astype(np.float32)


SERIES_FAULTS: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "overlap": (future_at(-6), "window_fault: training batches, targets", "overlap"),
    "gap": (future_at(5), "window_fault: training batches, targets", "gap"),
    "other windows": (
        change_windows(lambda data, first, batch: batch._replace(targets=batch.targets.roll(1, 0))),
        "window_fault: training batches, targets",
        "other windows",
    ),
    "scaled by all rows": (scale_by_everything, "window_fault: scale of the series", "whole table"),
}


# Text.


def prose(folder: Path, **options: Any) -> tuple[Any, Any]:
    draw, known = random.Random(1), words(300, 6)
    path = folder / "prose.txt"
    path.write_text(" ".join(draw.choice(known).title() for _ in range(8000)))
    config = TextConfig(path=str(path), batch=16, **options)
    return config.build(32), config


def lower(data: Any) -> Callable[[Any], Any]:
    table = np.array([ord(chr(n).lower()) for n in range(256)])
    return lambda ids: table[ids]


#: The kinds of findings that these faults cause.
KINDS = {
    *(one[-1].partition(":")[0] for table in (IMAGE_FAULTS, SIGNAL_FAULTS, TEXT_FAULTS) for one in table.values()),
    *(one[1].partition(":")[0] for one in SERIES_FAULTS.values()),
    *("pair_fault", "text_fault"),
}
