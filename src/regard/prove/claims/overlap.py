"""The validation and test parts are not in the training part.

Overlapping windows are rarely equal as a whole, so runs of tokens are compared, half a window long: a held-out row is
known if training has such a run of it. Language repeats itself a little; more than one row in fifty is a leak.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data import PairBatch
from regard.data.texts.rolling_hash import hashes_of
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.batches import Batch, batch_size

SHORTEST, LONGEST = 12, 64  # tokens of a run
KNOWN = 0.02  # the largest share of known rows
TRAINED, HELD_OUT = 2_000_000, 400_000  # tokens that are compared
STEPS = 400


@claim("overlap", "no validation or test text is in the training text", order=120)
def overlap(subject: ModelUnderTest) -> ClaimResult:
    data = subject.data
    if data is None:
        return not_applicable("no data was given")
    size, batches, count = batch_size(data), [], 0
    for step in range(STEPS):
        batches.append(data.batch(step, seed=1, size=size))
        count += batches[-1].inputs.numel()
        if count > TRAINED:
            break
    width = max(batch.inputs.shape[1] for batch in batches)
    run = max(min(SHORTEST, width), min(width // 2, LONGEST))
    trained = np.unique(np.concatenate([np.zeros(0, np.uint64), *_row_hashes(batches, run)]))
    evidence = []
    for part, held_out in (("validation", data.validation_batches), ("test", data.test_batches)):
        rows = _row_hashes(islice(held_out(size), -(-HELD_OUT // (size * width)) + 1), run)
        known = [bool(np.isin(hashes, trained).any()) for hashes in rows]
        if sum(known) > max(KNOWN * len(known), 1):
            rows = f"{sum(known)} of {len(known)} {part} rows ({np.mean(known):.0%}; first row {known.index(True)})"
            return fails(f"{rows} have {run} consecutive tokens of {len(batches)} training batches")
        if known:
            evidence.append(f"{sum(known)} of {len(known):,} {part} rows")
    if not evidence:
        return not_applicable(f"no held-out row has {run} tokens that count")
    return holds(f"{' and '.join(evidence)} share a run of {run} tokens with {count:,} tokens of the training text")


def _row_hashes(batches: Iterable[Batch], run: int) -> Iterator[NDArray[np.uint64]]:
    """The hashes of all runs of ``run`` real tokens, row by row; of a pair, the source comes before the translation."""
    for batch in batches:
        for row, targets in enumerate(batch.targets):
            counted = (targets >= 0).nonzero()
            if not len(counted):
                continue
            first, last = int(counted[0]), int(counted[-1]) + 1
            tokens = torch.cat((batch.inputs[row, first:last], targets[last - 1 : last]))
            if isinstance(batch, PairBatch):
                tokens = torch.cat((batch.source[row, : int(batch.source_lengths[row])], tokens))
            if len(tokens) >= run:
                yield hashes_of(tokens.numpy(), run)
