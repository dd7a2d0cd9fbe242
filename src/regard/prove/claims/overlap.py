"""What is evaluated on was not trained on.

Windows that overlap are rarely equal: so it is runs of tokens that are compared, half a window long, and a held-out row
is known if training has such a run of it. Language repeats itself a little; a row in fifty is no accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.texts.rolling_hash import hashes_of
from regard.prove.batches import size_for
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "what is evaluated on was not trained on"
SHORTEST, LONGEST = 12, 64  # tokens of a run
TOLD = 0.02  # the share of known rows that is too much
TRAINED, HELD = 2_000_000, 400_000  # tokens that are looked at
STEPS = 400


def judge(subject: Subject) -> Verdict:
    data = subject.data
    if data is None:
        return unasked("no data was given")
    size, seen = size_for(data), 0
    batches = []
    for step in range(STEPS):
        batches.append(data.batch(step, seed=1, size=size))
        seen += batches[-1].inputs.numel()
        if seen > TRAINED:
            break
    parts = {"validation": data.validation_batches, "test": data.test_batches}
    width = max(batch.inputs.shape[1] for batch in batches)
    run = max(min(SHORTEST, width), min(width // 2, LONGEST))
    trained = np.unique(np.concatenate([np.zeros(0, np.uint64), *_each_row(batches, run)]))
    told = []
    for part, rows in parts.items():
        known, first, count = 0, -1, 0
        for number, runs in enumerate(_each_row(islice(rows(size), -(-HELD // (size * width)) + 1), run)):
            count += 1
            if _any_of(runs, trained):
                first = number if first < 0 else first
                known += 1
        if count and known > max(TOLD * count, 1):
            return fails(
                f"{known} of {count} {part} rows ({known / count:.0%}; first row {first}) have {run} tokens in a row "
                f"that training has, within {len(batches)} batches"
            )
        if count:
            told.append(f"{known} of {count:,} {part} rows")
    if not told:
        return unasked(f"no held-out row has {run} tokens that count")
    return holds(f"{' and '.join(told)} have {run} tokens in a row that {seen:,} tokens of training have")


def _any_of(runs: NDArray[np.uint64], known: NDArray[np.uint64]) -> bool:
    """Whether one of them is among the sorted ``known``."""
    places = np.searchsorted(known, runs).clip(max=len(known) - 1)
    return bool(len(known)) and bool((known[places] == runs).any())


def _texts(batch: Any) -> Iterator[NDArray[np.int64]]:
    """The real tokens of each row; a pair's source before its translation."""
    for row in range(len(batch.inputs)):
        counted = (batch.targets[row] >= 0).nonzero()
        if not len(counted):
            continue
        first, last = int(counted[0]), int(counted[-1]) + 1
        text = torch.cat((batch.inputs[row, first:last], batch.targets[row, last - 1 : last]))
        if hasattr(batch, "source"):
            text = torch.cat((batch.source[row, : int(batch.source_lengths[row])], text))
        yield text.numpy()


def _each_row(batches: Iterable[Any], run: int) -> Iterator[NDArray[np.uint64]]:
    for batch in batches:
        for text in _texts(batch):
            if len(text) >= run:
                yield hashes_of(text, run)
