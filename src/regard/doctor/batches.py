"""What batches tell without a model: tokens that do not exist, answers in the question, rows that come again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor import limits
from regard.doctor.finding import Finding

#: Batches compared with the newest one, of which at least a few, and places before a target that are searched for it.
COMPARED, AT_LEAST, BACK = 48, 3, 4
STALLS = 16  # steps from which on a few slow ones say something


class Fetched(NamedTuple):
    """Batches that were asked for again, the newest first, and how long one took."""

    batches: dict[int, Any]
    seconds: float

    @property
    def newest(self) -> Any:
        """The first of them."""
        return next(iter(self.batches.values()))


def fetch(get: Callable[[int], Any], newest: int, patience: float) -> Fetched:
    """The newest batches by number; fewer of them where that takes longer than ``patience``."""
    found, times = {}, []
    began = time.perf_counter()
    for number in range(newest, max(newest - COMPARED - 1, -1), -1):
        started = time.perf_counter()
        found[number] = get(number)
        times.append(time.perf_counter() - started)
        if len(found) >= AT_LEAST and time.perf_counter() - began > patience:
            break
    usual = sorted(times)[:-1] or times  # without the slowest, which may be an accident; slow ones may come in turns
    return Fetched(found, statistics.mean(usual))


def judge(fetched: Fetched, vocabulary: int | None, epoch: float) -> Iterator[Finding]:
    """``epoch``: batches until data comes again by right."""
    for number, batch in fetched.batches.items():
        yield from out_of_range(number, batch, vocabulary)
    yield from _leak(fetched.newest)
    yield from _copied(fetched.newest)
    yield from _again(fetched.batches, epoch)


def out_of_range(number: int, batch: Any, vocabulary: int | None) -> Iterator[Finding]:
    """Tokens that no embedding has."""
    for name, lowest in (("inputs", 0), ("source", 0), ("targets", -1)):
        tokens = getattr(batch, name, None)
        if vocabulary is None or not isinstance(tokens, Tensor) or not tokens.numel():
            continue
        least, most = (int(edge) for edge in tokens.aminmax())
        if lowest <= least and most < vocabulary:
            continue
        wrong = most if most >= vocabulary else least
        place = (tokens == wrong).nonzero()[0].tolist()
        where = f"batch {number}, {name}[{', '.join(map(str, place))}]"
        evidence = f"it is {wrong}, and the vocabulary has {vocabulary}, from 0 on"
        cause = "text and model have different tokenizers, or a batch is made wrongly"
        yield Finding("token_range", where, evidence, cause, f"--model.vocabulary {wrong + 1}, or mend the tokenizer")


def _leak(batch: Any) -> Iterator[Finding]:
    """Targets that stand in the inputs at or before their place: to copy is to win."""
    inputs, targets = batch.inputs, batch.targets
    for back in range(min(BACK, inputs.shape[1] - 1)):
        seen, wanted = inputs[:, : inputs.shape[1] - back], targets[:, back:]
        counted = wanted >= 0
        if not counted.any() or len(wanted[counted].unique()) < 3:  # a text of one letter is its own answer
            continue
        share = float(((seen == wanted) & counted).sum() / counted.sum())
        if share > limits.LEAKED:
            which = "itself" if not back else f"{back} before it"
            evidence = f"{share:.0%} of the targets are the input {which}, not the one that follows"
            cause = "targets were not shifted by one, or in the wrong direction"
            yield Finding("label_leak", "targets", evidence, cause, "make targets[:, t] the token after inputs[:, t]")
            return


def _copied(batch: Any) -> Iterator[Finding]:
    """Translations that stand in what is to be translated."""
    if not hasattr(batch, "source"):
        return
    sources = [row[:length].tolist() for row, length in zip(batch.source, batch.source_lengths.tolist(), strict=True)]
    wanted = [row[row >= 0][:-1].tolist() for row in batch.targets]  # without the end mark
    pairs = [(source, target) for source, target in zip(sources, wanted, strict=True) if target]
    held = sum(any(s[i : i + len(t)] == t for i in range(len(s) - len(t) + 1)) for s, t in pairs)
    if pairs and held > limits.LEAKED * len(pairs):
        evidence = f"{held / len(pairs):.0%} of the translations stand in their own source, word for word"
        cause = "both sides were read from the same column or file, or the answer was left in the question"
        yield Finding(
            "label_leak", "source", evidence, cause, "see that --data.path has a sentence, a tab, its translation"
        )


def _again(batches: dict[int, Any], epoch: float) -> Iterator[Finding]:
    """Rows of the newest batch that an earlier one had, though there is other text left."""
    newest, *earlier = batches
    rows = _rows(batches[newest])
    count = len(batches[newest].inputs)
    if len(rows) < (1 - limits.REPEATED) * count:
        evidence = f"batch {newest} has {count} rows, of which {len(rows)} differ"
        cause = "the loader gives the same rows over and over within a batch"
        change = "draw every row of a batch by itself"
        yield Finding("duplicated_data", f"training batches, within batch {newest}", evidence, cause, change)
        return
    for number in earlier:
        if newest - number > epoch / 2:
            break
        share = len(rows & _rows(batches[number])) / max(len(rows), 1)
        if share > limits.REPEATED:
            evidence = f"{share:.0%} of batch {newest} stand in batch {number} too, {newest - number} before it"
            cause = "the loader goes round in a circle, or its seed starts again"
            change = "draw batches from the whole text: use the batch's number in its seed"
            yield Finding("duplicated_data", f"training batches, every {newest - number}", evidence, cause, change)
            return


def _rows(batch: Any) -> set[bytes]:
    """Each row as its tokens; of pairs without padding, of which a row has more or less in other batches."""
    if not hasattr(batch, "source"):
        return {row.tobytes() for row in batch.inputs.numpy()}
    behind = torch.arange(batch.source.shape[1]) >= batch.source_lengths[:, None]
    sides = [batch.source.masked_fill(behind, -1), batch.inputs.masked_fill(batch.targets < 0, -1)]
    return {b"|".join(row[row >= 0].numpy().tobytes() for row in rows) for rows in zip(*sides, strict=True)}


def starving(waiting: float, step: float, accumulate: int) -> Iterator[Finding]:
    """Time that goes into making batches, as a share of a step."""
    share = waiting * accumulate / max(step, 1e-9)
    if share > limits.STARVED:
        evidence = f"the batches of a step take {waiting * accumulate * 1e3:.3g} ms of its {step * 1e3:.3g} ms"
        cause = "text is read or made more slowly than the model learns from it"
        change = "put the text on a local disk, tokenise it beforehand, or a larger --data.batch"
        yield Finding("starvation", "data.batch", evidence, cause, change)


def stalling(steps: Sequence[tuple[float, range]], get: Callable[[int], Any]) -> Iterator[Finding]:
    """A few batches for which all others wait: those of the slowest steps (seconds, numbers) are made once more."""
    seconds = [taken for taken, _ in steps]
    if len(seconds) < STALLS:
        return
    middle = statistics.median(seconds)
    slow = sorted((one for one in steps if one[0] > 3 * middle), key=lambda one: -one[0])
    lost = sum(taken - middle for taken, _ in slow)
    if lost < limits.STARVED * sum(seconds):
        return
    began = time.perf_counter()
    for number in (number for _, numbers in slow[:2] for number in numbers):
        get(number)
    if time.perf_counter() - began > sum(taken - middle for taken, _ in slow[:2]) / 2:
        share, numbers = lost / sum(seconds), ", ".join(str(numbers[0]) for _, numbers in slow[:3])
        evidence = (
            f"{len(slow)} of the last {len(seconds)} steps took {share:.0%} of the time, such as batches {numbers}"
        )
        cause = "some batches take far longer to make than others, and training waits for them"
        change = "put the text on a local disk, tokenise it beforehand, or fetch batches ahead"
        yield Finding("starvation", "data.batch", evidence, cause, change)
