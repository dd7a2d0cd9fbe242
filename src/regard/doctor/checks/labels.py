"""Labels that do not belong to their inputs, by classifiers that know nothing of the run's model.

Each part must be about as predictable from its own examples as from those of the others. Where a classifier does not
do better than the most frequent label, nothing is said.
"""

import numpy as np

from regard.doctor import Finding, Findings
from regard.doctor.classifiers import Classify, Labels, crossed, features, lift, most_frequent, tail
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Array, Examples, Sample

#: Examples of a part at least and at most, and how far above the most frequent label a classifier must be.
FEWEST, MOST, USEFUL = 20, 1500, 0.3
#: The chance that sound labels look as wrong as those that are reported.
CHANCE = 1e-7
#: A part is wrong if it keeps less than this share of what is predictable; batches, which augmentation changes, less.
KEPT, KEPT_BATCHES = 0.5, 0.3
#: Classes are exchanged if so many of their examples are called another one, and so few what they are.
CALLED, OWN = 0.6, 0.15
#: Labels of one part are wrong at random if they are less predictable than those of the other one by this much, and by
#: so many standard deviations.
NOISE, DEVIATIONS = 0.1, 5.0
#: The share of labels of batches that differ from those of the same stored examples.
CHANGED = 0.01
TOKENS = 20_000  # of each part, whose tags are compared


class LabelFault(DataCheck):
    kind, description = "label_fault", "labels do not belong to their inputs"
    follows = ("target_fault",)

    def judge(self, examples: Examples) -> Findings:
        if not examples.classes:
            return
        parts = [examples.stored, examples.trained, examples.validation]
        if parts[0].tags and parts[1].tags:
            given = [tagged(part) for part in parts]
            classify: Classify = most_frequent
        else:
            changed = self._changed(parts[0], parts[1])
            if changed is not None:
                yield changed
                return
            kept = [part.pick(np.flatnonzero(part.targets >= 0).tolist()).thinned(MOST) for part in parts]
            if len(kept[0]) < FEWEST:
                return
            some = [part for part in kept if len(part)]
            found, classify = features(*some)
            sparse = dict(zip(map(id, some), found, strict=True))
            given = [(sparse.get(id(part), np.zeros((0, 1))), part.targets) for part in kept]
        yield from compare(self, examples, given, classify)

    def _changed(self, stored: Sample, trained: Sample) -> Finding | None:
        """Inputs of batches that are stored with another class."""
        known: dict[bytes, set[int]] = {}
        for key, target in zip(stored.keys, stored.targets.tolist(), strict=True):
            known.setdefault(key, set()).add(target)
        both = list(zip(trained.keys, trained.targets.tolist(), strict=True))
        found = [(target, *known[key]) for key, target in both if target >= 0 and len(known.get(key, ())) == 1]
        wrong = [pair for pair in found if pair[0] != pair[1]]
        if len(found) < FEWEST or len(wrong) <= CHANGED * len(found):
            return None
        evidence = f"{len(wrong):,} of {len(found):,} inputs of batches are stored with another class"
        cause = "labels are changed, shifted or mixed up when a batch is made"
        return self.finding("training batches, labels", evidence, cause, "take input and label with the same index")


def compare(check: LabelFault, examples: Examples, given: list[tuple[Array, Labels]], classify: Classify) -> Findings:
    """Predict the labels of each part from those of another one, and from its own."""
    classes, names = examples.classes, examples.labels
    (stored, labels), (trained, wanted), (held_out, answers) = given
    if len(set(labels.tolist())) < 2 or labels.max() >= classes:
        return
    own = crossed(classify, stored, labels, classes) == labels
    useful = lift(own.mean(), labels)

    def lost(right: Array, targets: Labels, of: float, kept: float) -> bool:
        """Whether far less is predictable than ``of``, the share of right predictions that is expected."""
        expected, count = max(0.0, of - 3 * (of * (1 - of) / max(len(labels), 1)) ** 0.5), len(targets)
        less = lift(right.mean(), targets) < kept * lift(of, targets)
        return bool(less and tail(count, right.sum(), expected) < CHANCE)

    unchanged = examples.trained is not examples.stored
    if unchanged and len(wanted) >= FEWEST and useful > USEFUL and len(set(wanted.tolist())) > 1:
        right = classify(stored, labels, trained, classes) == wanted
        among = crossed(classify, trained, wanted, classes) == wanted
        if lost(right, wanted, own.mean(), KEPT_BATCHES) and lost(among, wanted, own.mean(), KEPT_BATCHES):
            evidence = f"a simple classifier is right in {own.mean():.0%} of the stored training examples, in "
            evidence += f"{right.mean():.0%} of those of batches, and learns {among.mean():.0%} from batches alone"
            cause = "labels are mixed up when a batch is made, or augmentation destroys what distinguishes the classes"
            yield check.finding(
                "training batches, labels", evidence, cause, "look at some rows of a batch", "less augmentation"
            )
            return
    if len(answers) < FEWEST or len(set(answers.tolist())) < 2 or answers.max() >= classes:
        return
    predicted = classify(stored, labels, held_out, classes)
    inside = crossed(classify, held_out, answers, classes) == answers
    right = predicted == answers
    few = slice(None, None, max(1, len(labels) // max(len(answers), 1)))
    small = crossed(classify, stored[few], labels[few], classes) == labels[few]
    renamed = exchanged(predicted, answers, crossed(classify, stored, labels, classes), labels, classes)
    if useful > USEFUL and renamed:
        yield renamed_finding(check, [(names[one], names[other]) for one, other in renamed], right, own)
    elif useful > USEFUL and lost(right, answers, own.mean(), KEPT) and lost(inside, answers, small.mean(), KEPT):
        evidence = f"a simple classifier is right in {own.mean():.0%} of the training labels, in {right.mean():.0%} of "
        evidence += f"those of the validation part, and in {inside.mean():.0%} if it learns from that part"
        cause = "labels of the validation part are shuffled, shifted by some rows, or read from another column or file"
        yield check.finding("validation labels", evidence, cause, "compare some validation inputs with their labels")
    elif noisy(own, labels, right, answers):
        yield noise_finding(check, examples, own, labels, right)


def renamed_finding(check: LabelFault, renamed: list[tuple[object, object]], right: Array, own: Array) -> Finding:
    """Classes of the validation part that have the names of others."""
    pairs = ", ".join(f"{one!r} is called {other!r}" for one, other in renamed[:4])
    evidence = f"by the training examples {len(renamed)} classes of the validation part have other names: {pairs}; "
    evidence += f"{right.mean():.0%} of its labels are as predicted, of training labels {own.mean():.0%}"
    cause = "the two parts number their classes differently, or labels of these classes are exchanged in one of them"
    where = f"validation labels, {', '.join(str(one) for one, _ in renamed[:4])}"
    return check.finding(where, evidence, cause, "use one table from class names to numbers for both parts")


def noise_finding(check: LabelFault, examples: Examples, own: Array, labels: Labels, right: Array) -> Finding:
    """Training labels that are wrong at random."""
    evidence = f"a simple classifier learned from training labels is right in {right.mean():.0%} of the validation "
    evidence += f"labels ({len(right):,}), but in {own.mean():.0%} of the training labels themselves ({len(labels):,})"
    cause = f"about {1 - own.mean() / right.mean():.0%} of the training labels are wrong"
    if (classes := examples.classes) > 2:
        worst = np.bincount(labels[~own], minlength=classes) / np.maximum(np.bincount(labels, minlength=classes), 1)
        if worst.max() > 2 * np.median(worst) + 0.1:
            cause += f", most of them called {examples.labels[int(worst.argmax())]!r}"
    return check.finding("training labels", evidence, cause, "correct the labels: look at examples unlike their class")


def noisy(own: Array, labels: Labels, right: Array, answers: Labels) -> bool:
    """Training labels are less predictable than validation labels that are predicted from them."""
    better = lift(right.mean(), answers)
    less = lift(own.mean(), labels) < min(better - NOISE, 0.85 * better)
    variance = sum(float(part.mean() * (1 - part.mean())) / len(part) + 1 / len(part) ** 2 for part in (own, right))
    return bool(better > USEFUL and less and right.mean() - own.mean() > DEVIATIONS * variance**0.5)


def exchanged(predicted: Labels, answers: Labels, own: Labels, labels: Labels, classes: int) -> list[tuple[int, int]]:
    """Classes whose examples are called another one, as (class by its inputs, its name in ``answers``)."""
    table, base = np.zeros((classes, classes)), np.zeros((classes, classes))
    np.add.at(table, (answers, predicted), 1)  # [name, by its inputs]
    np.add.at(base, (labels, own), 1)
    sizes, usual = table.sum(1), base.diagonal() / np.maximum(base.sum(1), 1)
    called = table.argmax(1)
    moved = [
        name
        for name in range(classes)
        if sizes[name] >= 4
        and called[name] != name
        and table[name].max() > CALLED * sizes[name]
        and table[name, name] < OWN * sizes[name]
        and usual[called[name]] > CALLED
    ]
    chance = np.prod(
        [tail(int(sizes[name]), table[name, name], max(usual[name] - 0.1, 0.0)) for name in moved] or [1.0]
    )
    one_to_one = len({int(called[name]) for name in moved}) == len(moved)
    # Exchanged classes are a permutation of each other, but for those that are too rare to judge.
    inside = sum(int(called[name]) in moved or sizes[called[name]] < 4 for name in moved)
    if len(moved) < 2 or not one_to_one or inside < len(moved) or chance > CHANCE:
        return []
    return [(int(called[name]), name) for name in moved]


def tagged(part: Sample) -> tuple[Array, Labels]:
    """The tokens [R, 1] of a part that have a tag, and their tags."""
    if not part.tags:
        return np.zeros((0, 1), np.int64), np.zeros(0, np.int64)
    tokens, tags = np.concatenate(part.rows), np.concatenate(part.tags).astype(np.int64)
    kept = np.flatnonzero(tags >= 0)[:TOKENS]
    return tokens[kept][:, None], tags[kept]
