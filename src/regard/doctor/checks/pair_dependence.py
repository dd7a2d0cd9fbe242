"""Pairs whose sides do not belong together, by a linear prediction of the words of one side from those of the other."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data import PairBatch, PairData, SentencePairs
from regard.doctor import Findings
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Examples

SEED, WORDS, PAIRS, FEWEST = (
    1,
    512,
    3000,
    200,
)  # most frequent words of a side; pairs that are read, at most and at least
SHIFTS = (*range(-5, 0), *range(1, 6))
#: Standard errors by which the prediction is more like its own target than like a random one, of sound pairs at least;
#: and of a shift that is named, at least.
SIMILAR, SURE = 6.0, 8.0
#: The mean similarity of sound pairs, beyond that of random ones.
LEAST = 0.02
#: Words that come again, at least, or two characters are counted instead; a sentence has more units than this, of more
#: that are different than this.
AGAIN, SEVERAL, MANY = 0.5, 3, 50
#: The share of batches' rows that must be pairs of the data.
BROKEN, ROWS = 0.02, 64
#: Half the sum of differences between the words of both sides: languages are exchanged.
EXCHANGED = 0.5


class Dependence(NamedTuple):
    """How much better the target of a source is predicted than other targets."""

    own: float  # standard errors
    gain: float  # the mean similarity, beyond that with another target
    shift: int  # of the lines that is best; 0: none
    shifted: float  # its standard errors
    count: int  # of pairs
    natural: bool  # sides of several words of many: sentences, for which a linear prediction must be of use


class PairFault(DataCheck):
    kind, description = "pair_fault", "sources and targets do not belong together"
    follows = ("target_fault",)

    def judge(self, examples: Examples) -> Findings:
        data = examples.data
        if not isinstance(data, PairData):
            return
        yield from self._exchanged(data)
        broken = list(self._rows(data))
        yield from broken
        found = {name: dependence(pairs) for name, pairs in (("training", data.train), ("validation", data.validation))}
        train = found["training"]
        if train is not None:
            yield from self._dependence("training pairs", train)
        # A model of the training pairs predicts those held out, too.
        if train is not None and train[0] > SURE and not broken:
            across = dependence(data.validation, data.train)
            if across is not None:
                yield from self._dependence("validation pairs", across)

    def _dependence(self, where: str, found: Dependence) -> Findings:
        own, gain, shift, shifted, count, natural = found
        if shift and shifted > SURE and shifted > 2 * own:
            evidence = f"words of a target are predicted best by the source {abs(shift)} lines "
            evidence += (
                f"{'after' if shift > 0 else 'before'} it: {shifted:.0f} standard errors above chance; by its own "
            )
            evidence += f"source {own:.1f} ({count:,} pairs)"
            cause = f"one side is shifted by {abs(shift)} lines against the other: a line was lost or added"
            yield self.finding(where, evidence, cause, "align the files again: compare some lines with the same number")
        elif own < SIMILAR and gain < LEAST and natural:
            evidence = "words of a target are predicted from its own source no better than from another one: "
            evidence += f"{own:.1f} standard errors ({count:,} pairs)"
            cause = "the pairs are mixed up, so the target does not depend on the source"
            yield self.finding(where, evidence, cause, "align the files again: compare some lines with the same number")

    def _rows(self, data: PairData) -> Findings:
        """Rows of batches that are no pair of the data."""
        size, specials = self.run.experiment.data.batch, data.specials
        for where, pairs, batch in (
            ("training batches", data.train, self.run.batch(0)),
            ("validation", data.validation, next(iter(data.validation_batches(size)), None)),
        ):
            if not isinstance(batch, PairBatch) or not pairs.count or not data.tokenizer.lossless:
                continue
            known: dict[str, set[str]] = {}
            for source, target in zip(pairs.sources, pairs.targets, strict=True):
                known.setdefault(source, set()).add(target)
            targets = {target for some in known.values() for target in some}
            wrong: Counter[str] = Counter()
            rows = min(len(batch.source), ROWS)
            for number in range(rows):
                source = batch.source[number, : int(batch.source_lengths[number])]
                target = batch.targets[number][batch.targets[number] >= 0]
                if len(source) >= data.context or len(target) >= data.context or not len(target):
                    continue  # truncated
                one, other = (self._text(data, side[side < specials.pad]) for side in (source, target))
                if one not in known:
                    wrong["its source is no source of the data"] += 1
                elif other not in targets:
                    wrong["its target is no target of the data"] += 1
                elif other not in known[one]:
                    wrong["its target is that of another source"] += 1
            for what, count in wrong.most_common(1):
                if count > BROKEN * rows and count > 1:
                    evidence = f"in {count} of {rows} rows {what}"
                    cause = "tokens are changed, or rows are mixed up, when a batch is made"
                    yield self.finding(f"{where}, pairs", evidence, cause, "take both sides with the same index")

    def _text(self, data: PairData, ids: object) -> str:
        return data.tokenizer.decode(np.asarray(ids))

    def _exchanged(self, data: PairData) -> Findings:
        """Validation pairs whose sources are in the language of the targets."""
        if min(data.train.count, data.validation.count) < FEWEST / 4:
            return
        sides = [data.train.sources, data.train.targets, data.validation.sources, data.validation.targets]
        counts = [Counter(word for text in side[:PAIRS] for word in text.split()) for side in sides]
        same, crossed = apart(counts[0], counts[2]), apart(counts[0], counts[3])
        if same > EXCHANGED and crossed < same / 2 and apart(counts[1], counts[2]) < apart(counts[1], counts[3]) / 2:
            evidence = f"words of their sources differ by {same:.0%} from those of training sources, and by "
            evidence += f"{apart(counts[1], counts[2]):.0%} from those of training targets"
            cause = "source and target are exchanged in the validation part"
            yield self.finding("validation pairs", evidence, cause, "check the order of --data.languages and the files")


def apart(one: Counter[str], other: Counter[str]) -> float:
    """Half the sum of differences between the shares of words."""
    first, second = max(one.total(), 1), max(other.total(), 1)
    return sum(abs(one[word] / first - other[word] / second) for word in one.keys() | other.keys()) / 2


def dependence(pairs: SentencePairs, learned: SentencePairs | None = None) -> Dependence | None:
    """The dependence of targets on their sources; None: too few pairs.

    ``learned``: pairs that a linear model is learned from; default: it is learned from the first two thirds.
    """
    count = min(pairs.count, PAIRS)
    known = learned or pairs
    first = min(known.count, PAIRS)
    if min(count, first) < FEWEST:
        return None
    start = 0 if learned is not None else 2 * count // 3
    sources, targets = (counted(side[:first], side[:first]) for side in (known.sources, known.targets))
    asked, answers = (
        counted(given[:count], base[:first])
        for given, base in ((pairs.sources, known.sources), (pairs.targets, known.targets))
    )
    stop = first if learned is not None else start

    def scores(shift: int) -> tuple[float, float]:
        """Standard errors, and mean, of the similarity of predictions with targets beyond random ones."""
        if learned is None:
            rows = np.arange(max(0, -shift), min(stop, stop - shift))
            weights = ridge(sources[rows + shift], targets[rows])
        else:
            weights = whole
        places = np.arange(max(start, start - shift), min(count, count - shift))
        predicted, wanted = unit(asked[places + shift] @ weights), unit(answers[places])
        other = np.roll(np.arange(len(places)), len(places) // 2 + 7)
        gains = (predicted * wanted).sum(1) - (predicted * wanted[other]).sum(1)
        return float(gains.mean() / max(gains.std() / len(gains) ** 0.5, 1e-9)), float(gains.mean())

    whole = ridge(sources[:stop], targets[:stop])
    own, gain = scores(0)
    if own > 2 * SURE and gain > LEAST:
        return Dependence(own, gain, 0, own, count - start, True)
    others = {shift: scores(shift)[0] for shift in SHIFTS}
    best = max(others, key=lambda shift: others[shift])
    natural = all(is_natural(side[:count]) for side in (pairs.sources, pairs.targets))
    return Dependence(own, gain, best if others[best] > own else 0, others[best], count - start, natural)


def units(texts: list[str]) -> Callable[[str], list[str]]:
    """What texts are made of: words or, where those hardly come again, two characters."""
    found = Counter(word for text in texts for word in text.split())
    again = sum(n for n in found.values() if n > 1) / max(found.total(), 1)
    return str.split if again > AGAIN else lambda text: [text[n : n + 2] for n in range(max(1, len(text) - 1))]


def is_natural(texts: list[str]) -> bool:
    """Whether texts are like sentences: several units each, of many."""
    split = units(texts)
    found = Counter(unit for text in texts for unit in split(text))
    return found.total() > SEVERAL * len(texts) and sum(n > 4 for n in found.values()) > MANY


def counted(texts: list[str], base: list[str]) -> NDArray[np.float64]:
    """Centered shares [R, WORDS] of the most frequent words of ``base`` in each text."""
    split = units(base)
    frequent = Counter(word for text in base for word in set(split(text)))
    numbers = {word: number for number, (word, _) in enumerate(frequent.most_common(WORDS))}
    found = np.zeros((len(texts), WORDS))
    for row, text in zip(found, texts, strict=True):
        for word in split(text):
            if (number := numbers.get(word)) is not None:
                row[number] = 1.0
    inverse = np.array([np.log(len(base) / (1 + count)) for _, count in frequent.most_common(WORDS)])
    found[:, : len(inverse)] *= inverse.clip(0)
    shares = np.array([count / len(base) for _, count in frequent.most_common(WORDS)])
    found[:, : len(inverse)] -= shares * inverse.clip(0)
    return found


def ridge(inputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """The weights [WORDS, WORDS] of ridge regression."""
    gram = inputs.T @ inputs
    scale = float(np.trace(gram)) / len(gram) + 1e-9
    return np.linalg.solve(gram + 0.3 * scale * np.eye(len(gram)), inputs.T @ targets)


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
