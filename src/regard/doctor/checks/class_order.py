"""Classes that come in an order, that never come in batches, or that one part lacks."""

import math

import numpy as np
from numpy.typing import NDArray

from regard.doctor import Findings
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Examples, Sample
from regard.tasks.labeled import WeightedTaskConfig

#: Neighboring examples are of one class more often than by chance by this share of what is possible, and by so many
#: standard deviations; in an epoch that is shuffled they are not.
TOGETHER, DEVIATIONS, FEWEST = 0.25, 8.0, 64
#: The probability of so few examples of a class, and how much rarer it is than expected.
CHANCE, RARER = 1e-9, 0.34
BINS = 16  # of lengths: batches of texts of one length may have classes of their own
#: Expected examples of a class that a part lacks, at least; the logarithm of the chance that it lacks such classes.
COMMON, LACKING = 8.0, 16.0
WEIGHED = 2.0  # times the balanced weight, of a class with `COMMON` examples in a sample
#: Half the sum of differences between the shares of classes in two parts.
APART = 0.5


class ClassOrder(DataCheck):
    kind, description = "class_order", "classes do not come as they should"

    def judge(self, examples: Examples) -> Findings:
        trained, stored, held_out = examples.trained, examples.stored, examples.validation
        if not examples.classes:
            return
        if (trained.targets >= 0).all() and len(trained) >= FEWEST and examples.classes <= len(stored) / 4:
            yield from self._order(examples, trained, stored)
        yield from self._parts(examples, stored, held_out)
        task = self.run.experiment.task
        if isinstance(task, WeightedTaskConfig) and task.balanced and len(task.weights) == examples.classes:
            yield from self._weights(examples, stored, np.array(task.weights))

    def _weights(self, examples: Examples, stored: Sample, weights: NDArray[np.float64]) -> Findings:
        """Balanced weights are n / (classes · n_k)."""
        counts = np.bincount(stored.targets[stored.targets >= 0], minlength=examples.classes)
        due = counts.sum() / (len(counts) * np.maximum(counts, 1))
        off = np.where(counts >= COMMON, np.abs(np.log(np.maximum(weights, 1e-9) / due)), 0.0)
        number = int(off.argmax())
        if off[number] > math.log(WEIGHED):
            label = examples.labels[number]
            evidence = f"class {label} has {counts[number]:,} of {counts.sum():,} examples and a weight of "
            evidence += f"{weights[number]:.3g}, where balanced classes give it {due[number]:.3g}"
            inverse = np.corrcoef(np.log(np.maximum(weights, 1e-9)), np.log(due))[0, 1] < 0
            cause = "weights follow the frequency and not its inverse" if inverse else "weights are of other classes"
            yield self.finding("task.weights", evidence, cause, "weigh a class by n / (classes · examples of it)")

    def _order(self, examples: Examples, trained: Sample, stored: Sample) -> Findings:
        names, classes = examples.labels, examples.classes
        shares = expected(trained, stored, classes)  # [R, C]
        same = trained.targets[1:] == trained.targets[:-1]
        each = (shares[1:] * shares[:-1]).sum(1)
        together = (same.mean() - each.mean()) / max(1 - each.mean(), 1e-9)
        deviations = (same.sum() - each.sum()) / math.sqrt(float((each * (1 - each)).sum()) + 1e-9)
        if together > TOGETHER and deviations > DEVIATIONS:
            runs = 1 + int((~same).sum())
            numbers = trained.batches
            few = [len(set(trained.targets[numbers == n].tolist())) for n in np.unique(numbers)]
            evidence = f"{same.mean():.0%} of neighboring examples are of one class, where {each.mean():.0%} are by "
            evidence += f"chance: {len(trained):,} examples in {runs:,} runs; a batch has {np.median(few):g} classes"
            cause = "the training examples are not shuffled: they come sorted by class, or in blocks"
            yield self.finding(
                "training batches, order of the examples", evidence, cause, "shuffle them in every epoch"
            )
            return
        counts, due = np.bincount(trained.targets, minlength=classes), shares.sum(0)
        for number in np.argsort(counts - due).tolist():
            few, many = int(counts[number]), float(due[number])
            if few < RARER * many and poisson(few, many) < CHANCE:
                evidence = f"{few:,} of {len(trained):,} examples of batches are of it, where {many:.0f} are expected"
                cause = "batches leave out examples of a class: a filter, a wrong index range or a sampler's weights"
                where = f"training batches, class {names[number]}"
                yield self.finding(where, evidence, cause, "draw every training example once in an epoch")
                return

    def _parts(self, examples: Examples, stored: Sample, held_out: Sample) -> Findings:
        one, other = (part.targets[part.targets >= 0] for part in (stored, held_out))
        if min(len(one), len(other)) < FEWEST / 2:
            return
        counts = [np.bincount(part, minlength=examples.classes)[: examples.classes] for part in (one, other)]
        shares = [part / part.sum() for part in counts]
        apart = float(np.abs(shares[0] - shares[1]).sum()) / 2
        for lacks, has, name in ((0, 1, "training examples"), (1, 0, "validation")):
            due = np.where(counts[lacks] == 0, shares[has] * counts[lacks].sum(), 0.0)
            missing = np.flatnonzero(due > COMMON).tolist()
            certain = due[missing].sum() - len(missing) * math.log(len(due)) > LACKING
            if missing and certain and counts[has][missing].min() >= 2:
                evidence = f"none of {counts[lacks].sum():,} examples are of it, where {due[missing].sum():.0f} are "
                evidence += "expected by the other part"
                cause = "the examples were divided before they were shuffled, or a filter removed the class"
                where = f"{name}, class {', '.join(str(examples.labels[number]) for number in missing[:4])}"
                yield self.finding(where, evidence, cause, "divide shuffled examples, or the same share of each class")
                return
        limit = 2 * math.sqrt(sum(len(shares[0]) / len(part) for part in (one, other)))
        if apart > APART + limit * 0.5:
            number = int(np.abs(shares[0] - shares[1]).argmax())
            evidence = f"{shares[0][number]:.0%} of the training examples are of class {examples.labels[number]}, and "
            evidence += f"{shares[1][number]:.0%} of those for validation; the shares differ by {apart:.0%} in all"
            cause = "the examples were divided before they were shuffled"
            yield self.finding("validation, shares of the classes", evidence, cause, "divide shuffled examples")


def expected(trained: Sample, stored: Sample, classes: int) -> NDArray[np.float64]:
    """The probability of each class [R, C] for the rows of batches: by the length of the row, if lengths differ."""
    lengths = [np.array([row.shape[-1] for row in part.rows]) for part in (stored, trained)]
    kept = stored.targets >= 0
    edges = np.unique(np.quantile(lengths[0], np.linspace(0, 1, BINS + 1)[1:-1]))
    bins = [np.searchsorted(edges, one) for one in lengths]
    counts = np.zeros((len(edges) + 1, classes))
    np.add.at(counts, (bins[0][kept], stored.targets[kept]), 1)
    whole = counts.sum(0) / counts.sum()
    return ((counts + whole) / (counts.sum(1, keepdims=True) + 1))[bins[1]]


def poisson(count: float, due: float) -> float:
    """A bound of the probability of at most ``count`` where ``due`` are expected."""
    if count >= due:
        return 1.0
    return math.exp(count - due + (count * math.log(due / count) if count else 0.0))
