"""Inputs whose numbers, orientation or length differ between parts, that contain their label, or that are held out.

Both parts of a dataset of examples are samples of one distribution. Windows of a series to forecast are not: nothing is
said about them here.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from regard.data import ImageBatch, ImageTextBatch, SeriesData
from regard.doctor import Finding, Findings
from regard.doctor.checks.data_fault import ALIKE, APART, TOKENS, chance, distance
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Array, Examples, Sample
from regard.prove.shared_text import shingle_length, similarities

FEWEST = 12  # examples of each part
#: A measure of an example, such as its mean, separates the parts if it is larger in one of them for so many pairs of
#: examples of both; batches, which augmentation changes, almost always; and medians differ by so many deviations.
SEPARATES, SEPARATES_BATCHES, MOVED = 0.97, 0.995, 1.0
#: Deviations of two parts differ by this factor at least, beyond what augmentation does.
SCALED = 1.6
#: Images are from -1 to 1; other arrays have deviations below this.
IMAGE, LARGE = 1.02, 30.0
FLAT = 0.03  # the deviation of images below which they show nothing
#: The mean of one part is so many times chance away from that of the other one; from the turned one it is nearer by
#: this factor, and about as far as by chance.
SURE, NEARER, NEAR = 6.0, 4.0, 2.5
KNOWN = 0.1  # of the examples of the validation part that are training examples, too
#: Jaccard similarity of the shingles of two texts of which one is a copy with other words; the share of such examples,
#: which is up to 45 % in sound data of short messages.
NEAR_COPY, NEARLY_KNOWN = 0.4, 0.6
MEASURES = ("mean", "deviation", "lowest value", "highest value", "change between neighbors", "length")
TURNS = {
    "rows and columns exchanged": lambda image: image.swapaxes(-1, -2),
    "turned by 180 degrees": lambda image: image[..., ::-1, ::-1],
    "upside down": lambda image: image[..., ::-1, :],
    "mirrored left to right": lambda image: image[..., ::-1],
    "turned by 90 degrees": lambda image: np.rot90(image, 1, (-2, -1)),
    "turned by -90 degrees": lambda image: np.rot90(image, -1, (-2, -1)),
}


class InputFault(DataCheck):
    kind, description = "input_fault", "inputs are not what they should be"
    follows = ("non_finite",)

    def judge(self, examples: Examples) -> Findings:
        data, validation = examples.data, examples.validation
        if isinstance(data, SeriesData) or not len(examples.stored):
            return
        if examples.stored.arrays:
            yield from next(filter(None, (self._numbers(*one) for one in self._parts(examples))), [])
            yield from self._leak(examples)
            if min(len(validation), len(examples.stored)) >= FEWEST:
                yield from self._shifted(examples)
        else:
            yield from self._tokens(examples)
        yield from self._copies(examples)

    def _parts(self, examples: Examples) -> Iterator[tuple[str, Sample, bool]]:
        image = isinstance(self.run.batch(0), ImageBatch | ImageTextBatch)
        yield "training batches, inputs", examples.trained, image
        yield "validation inputs", examples.validation, image

    def _numbers(self, where: str, part: Sample, image: bool) -> list[Finding]:
        """Numbers of one part that no network is made for."""
        flat = np.concatenate([row.ravel()[:4096] for row in part.thinned(512).rows]) if len(part) else np.zeros(1)
        broken = float((~np.isfinite(flat)).mean())
        low, high, size = float(np.nanmin(flat)), float(np.nanmax(flat)), float(np.nanstd(flat))
        fix = "standardize the inputs in the same way in all parts"
        if broken:
            evidence = f"{broken:.2%} of their numbers are not finite"
            return [self.finding(where, evidence, "broken files, or a division by zero when they are scaled", fix)]
        if len(part) >= FEWEST and size > 0 and len(set(part.keys)) == 1:
            return [self.finding(where, f"all {len(part):,} are equal", "one example is read again and again", fix)]
        if len(part) >= FEWEST and size < 1e-3 * max(1.0, abs(low)):
            evidence = f"all of their numbers are between {low:.4g} and {high:.4g}"
            return [self.finding(where, evidence, "they are divided by their range twice, or they are empty", fix)]
        if image and (low < -IMAGE or high > IMAGE):
            evidence = f"they are from {low:.4g} to {high:.4g}, and images of a batch are from -1 to 1"
            cause = "pixels are not scaled" if high > 100 else "pixels are scaled twice or by another rule"
            return [self.finding(where, evidence, cause, "scale pixels by x / 127.5 - 1, once")]
        if image and len(part) and size < FLAT:
            evidence = f"nearly all of their numbers are close to {flat.mean():.3g}: the deviation is {size:.2g}"
            cause = "pixels are scaled twice, so that images hardly differ"
            return [self.finding(where, evidence, cause, "scale pixels by x / 127.5 - 1, once")]
        if not image and size > LARGE:
            evidence = f"they are from {low:.4g} to {high:.4g} with a deviation of {size:.3g}"
            cause = "the inputs are not scaled; layers are initialized for inputs of about 1"
            return [self.finding(where, evidence, cause, fix)]
        return []

    def _shifted(self, examples: Examples) -> Findings:
        """Validation inputs against stored training inputs, then batches against both."""
        stored, validation, trained = (
            part.thinned(400) for part in (examples.stored, examples.validation, examples.trained)
        )
        found = self._turned(stored, validation) or self._differs(stored, validation, SEPARATES)
        if found:
            yield self._unlike("validation inputs", "training inputs", found)
        elif examples.stored is not examples.trained and len(trained) >= FEWEST:
            found = self._turned(validation, trained) or self._differs(validation, trained, SEPARATES_BATCHES)
            if found:
                yield self._unlike("training batches, inputs", "validation and stored training inputs", found)

    def _unlike(self, where: str, others: str, found: tuple[str, str]) -> Finding:
        cause = f"they are prepared in another way than the {others}: {found[1]}"
        return self.finding(where, found[0], cause, "prepare the inputs of all parts by the same function")

    def _turned(self, known: Sample, asked: Sample) -> tuple[str, str] | None:
        """Images that are turned, or arrays whose channels come in another order."""
        if not known.alike or not asked.alike or known.rows[0].ndim < 2:
            return None
        one, other = (np.stack(part.rows).astype(np.float64) for part in (known, asked))
        if one.shape[1:] != other.shape[1:]:
            return None
        noise = float((one.var(0) / len(one)).sum() + (other.var(0) / len(other)).sum()) + 1e-12
        mean, means = one.mean(0), other.mean(0)
        apart = float(((mean - means) ** 2).sum())
        if apart < SURE * noise:
            return None
        turns = TURNS if one.ndim > 3 and one.shape[-1] == one.shape[-2] else {}
        candidates = {name: turn(means) for name, turn in turns.items()}
        if one.ndim == 3:
            candidates["in reverse order of time"] = means[:, ::-1]
        if 2 <= len(mean) <= 6:
            orders = list(permutations(range(len(mean))))[1:]
        else:
            cost = ((mean[:, None] - means[None]) ** 2).reshape(len(mean), len(mean), -1).sum(-1)
            order = tuple(cost.argmin(1).tolist())
            orders = [order] if len(set(order)) == len(order) else []
        candidates |= {f"channels in the order {', '.join(map(str, order))}": means[list(order)] for order in orders}
        distances = {name: float(((mean - turned) ** 2).sum()) for name, turned in candidates.items()}
        if not distances or (best := min(distances, key=lambda name: distances[name])) is None:
            return None
        if distances[best] * NEARER > apart or (
            distances[best] > NEAR * noise and distances[best] * 2 * NEARER > apart
        ):
            return None
        evidence = (
            f"the mean of {len(other):,} is {apart / noise:.0f} times as far from that of the {len(one):,} others "
        )
        evidence += f"as by chance, and with {best} {distances[best] / noise:.1f} times"
        return evidence, best

    def _differs(self, known: Sample, asked: Sample, limit: float) -> tuple[str, str] | None:
        """A measure of examples that separates the parts."""
        ours, theirs = ([measures(row) for row in part.rows] for part in (known, asked))
        one, other = np.stack(ours), np.stack(theirs)
        if one.shape[1:] != other.shape[1:]:
            return f"they have {other.shape[1]} channels, and the others {one.shape[1]}", "another number of channels"
        flat = [np.concatenate([row.ravel()[::step] for row in part.rows]) for part, step in ((known, 3), (asked, 3))]
        spread = max(float(flat[0].std()), 1e-9)
        ratio, moved = float(flat[1].std()) / spread, abs(float(flat[1].mean() - flat[0].mean())) / spread
        best: tuple[float, int, int] | None = None
        for channel in range(one.shape[1]):
            for number in range(one.shape[2]):
                a, b = one[:, channel, number], other[:, channel, number]
                above = auc(a, b)
                size = abs(np.median(b) - np.median(a)) / max(a.std(), b.std(), 1e-9)
                relevant = max(ratio, 1 / max(ratio, 1e-9)) > SCALED or moved > MOVED / 2 or number >= 4
                if max(above, 1 - above) > limit and size > MOVED and relevant and (best is None or size > best[0]):
                    best = size, channel, number
        if best is None:
            return None
        _, channel, number = best
        a, b = (float(np.median(part[:, channel, number])) for part in (one, other))
        evidence = f"the median of the {MEASURES[number]} of an example is {b:.4g}, and {a:.4g} in the others"
        evidence += f" (in channel {channel})" if one.shape[1] > 1 else ""
        return evidence, rule(flat[0], flat[1]) if number < 4 else self._rate(number, b / a if a else np.inf)

    def _rate(self, number: int, ratio: float) -> str:
        if number == 4:
            return f"neighboring points differ {ratio:.2g} times as much: smoothed, mixed, or at another rate"
        return f"{ratio:.2g} times as many points: another sampling rate, or they are cut"

    def _leak(self, examples: Examples) -> Findings:
        """A number of the inputs that is the same for all examples of a class, and not for all classes."""
        for name, part in (("training batches, inputs", examples.trained), ("validation inputs", examples.validation)):
            different = np.unique(np.array(part.keys, object), return_index=True)[1]
            known = part.pick(np.sort(different[part.targets[different] >= 0]).tolist())
            if not known.alike or len(known) < 4 * FEWEST or not examples.classes:
                continue
            rows, targets = np.stack([row.ravel()[:65536] for row in known.rows]), known.targets
            sizes = np.bincount(targets)
            often = np.flatnonzero(sizes >= 8)
            if len(often) < 2:
                continue
            kept = np.isin(targets, often)
            rows, targets = rows[kept], targets[kept]
            constant, values = np.ones(rows.shape[1], bool), []
            for number in often.tolist():
                own = rows[targets == number]
                constant &= np.abs(own - own[:1]).max(0) <= 1e-6
                values.append(own[0])
            separating = np.flatnonzero(constant & (np.ptp(np.stack(values), axis=0) > 1e-4))
            if len(separating):
                place = np.unravel_index(int(separating[0]), known.rows[0].shape)
                evidence = f"{len(separating)} of their numbers, such as that at {[int(n) for n in place]}, are the "
                evidence += f"same in all examples of a class, and differ between classes ({len(targets):,} examples)"
                cause = "the label is in the input: a column of the answers, or a mark that only one class has"
                yield self.finding(name, evidence, cause, "remove what is not known when the model is used")
                return

    def _tokens(self, examples: Examples) -> Findings:
        """Labelled texts whose tokens have other numbers in the validation part."""
        parts = [np.concatenate(part.rows) for part in (examples.stored, examples.validation) if len(part)]
        if len(parts) < 2 or min(map(len, parts)) < TOKENS:
            return
        size = int(max(part.max() for part in parts)) + 1
        one, other = (np.bincount(part, minlength=size) / len(part) for part in parts)
        found = numbered_apart(one, other, sum(1 / len(part) for part in parts))
        if found is not None:
            cause = "the two parts were tokenized with different tables: the same text has other numbers"
            yield self.finding("validation inputs", found, cause, "encode both parts with the tokenizer of the run")

    def _copies(self, examples: Examples) -> Findings:
        known = set(examples.stored.keys) | set(examples.trained.keys)
        held_out = examples.validation
        if len(held_out) < FEWEST or len(set(held_out.keys)) < FEWEST:
            return
        share = float(np.mean([key in known for key in held_out.keys]))
        whole = len(set(examples.stored.keys)) / max(1, getattr(examples.data, "count", len(examples.stored)))
        again = 1 - len(set(examples.stored.keys)) / len(examples.stored)
        # An example of a small sample of the training part stands for more of them.
        if share > KNOWN * min(1.0, whole) and share * len(held_out) >= 4 and again < 0.5:
            evidence = f"{share:.0%} of its {len(held_out):,} examples are among {len(known):,} training examples"
            cause = "the validation part is a copy of training examples, so its loss says nothing about others"
            yield self.finding("validation inputs", evidence, cause, "remove the copies, or hold out other examples")
        elif not examples.stored.arrays and again < 0.5 and whole > 0.5:
            yield from self._near_copies(examples.stored, held_out)

    def _near_copies(self, stored: Sample, held_out: Sample) -> Findings:
        """Texts most of whose runs of tokens are in one training text."""
        parts = [[row.astype(np.int64) for row in part.rows] for part in (stored, held_out)]
        shortest = max(2, int(np.median(list(map(len, parts[0])))) // 6)  # two words less change a third of a text
        similar = similarities(parts[1], parts[0], min(shortest, shingle_length(parts[0])))
        if len(similar) < FEWEST:
            return
        near = similar > NEAR_COPY
        share = float(near.mean())
        if share > NEARLY_KNOWN:
            evidence = f"{share:.0%} of its {len(near):,} examples differ from a training example by a few words"
            cause = "copies with small changes were made before the examples were divided: the measure is of memory"
            change = "divide the examples first; keep those that are alike in one part"
            yield self.finding("validation inputs", evidence, cause, change)


def measures(row: Array) -> Array:
    """The `MEASURES` of each channel [M, 6] of an array."""
    flat = row.reshape(len(row), -1) if row.ndim > 1 else row[:, None]
    change = np.abs(np.diff(row, axis=-1)).reshape(len(row), -1).mean(1) if row.ndim > 1 and row.shape[-1] > 1 else 0
    deviations = flat.std(1)
    relative = change / np.maximum(deviations, 1e-6)
    length = np.full(len(flat), row.shape[-1] if row.ndim > 1 else 1)
    return np.stack([flat.mean(1), deviations, flat.min(1), flat.max(1), relative * np.ones(len(flat)), length], 1)


def auc(one: Array, other: Array) -> float:
    """The probability that a number of ``other`` is larger than one of ``one``; equal ones count half."""
    ordered = np.sort(one)
    below, upto = (np.searchsorted(ordered, other, side) for side in ("left", "right"))
    return float((below + upto).mean()) / 2 / len(one)


def rule(known: Array, asked: Array) -> str:
    """The linear function that makes the distribution of ``asked`` of that of ``known``."""
    places = np.linspace(0.02, 0.98, 25)
    one, other = np.quantile(known, places), np.quantile(asked, places)
    found = []
    for theirs in (other, other[::-1]):
        spread = max(float(one.var()), 1e-12)
        slope = float(((one - one.mean()) * (theirs - theirs.mean())).mean()) / spread
        shift = float(theirs.mean() - slope * one.mean())
        found.append((float(((slope * one + shift - theirs) ** 2).mean()), slope, shift))
    _, slope, shift = min(found)
    how = "inverted" if slope < 0 else "scaled by another rule"
    return f"about {slope:.3g} x + {shift:.3g} of what they should be, so {how}"


def numbered_apart(one: Array, other: Array, sizes: float) -> str | None:
    """Evidence that two distributions of tokens differ by the numbers of the tokens alone."""
    import torch

    first, second = torch.from_numpy(one), torch.from_numpy(other)
    apart, alike = distance(first, second), distance(first.sort()[0], second.sort()[0])
    if apart > 2 * chance(first, sizes) + APART and alike < ALIKE * apart:
        return f"its tokens differ from the trained ones by {apart:.0%}, and sorted by frequency by {alike:.0%}"
    return None
