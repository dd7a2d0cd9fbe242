"""Windows of a series whose targets are in their inputs, do not follow them, or come from a held-out part."""

from collections.abc import Iterator

import numpy as np

from regard.data import ArrayBatch, SeriesData
from regard.doctor import Findings
from regard.doctor.data_check import DataCheck
from regard.doctor.examples import Array, Examples

#: Windows of each part that are looked at; windows that must obey what is reported.
WINDOWS, MOST = 24, 0.9
#: The first target is farther from the last input than their neighbors are from each other: by this factor, and at
#: most by a step that is equal to that of points so far apart.
GAP, FARTHEST = 2.5, 64
#: Tolerance of equal numbers, of a standardized mean and of a deviation.
EQUAL, STANDARD = 1e-4, 0.02
#: The step between neighbors over that between random points, from which on a series is in no order.
UNORDERED, SMOOTH = 0.7, 0.3
FIX = "take points t to t + T as inputs and the points from t + T on as targets, without overlap or gap"


class WindowFault(DataCheck):
    kind, description = "window_fault", "windows of a series are cut or scaled wrongly"
    rank = 0

    def judge(self, examples: Examples) -> Findings:
        data = examples.data
        for name, batch in self._batches(examples):
            history, future = (part.numpy().astype(np.float64) for part in (batch.inputs, batch.targets))
            if history.ndim != 3 or future.ndim != 3 or history.shape[2] != future.shape[2]:
                continue
            found = list(self._window(name, history[:WINDOWS], future[:WINDOWS], data))
            yield from found
            if found:
                return
        if isinstance(data, SeriesData):
            yield from self._scale(data)

    def _batches(self, examples: Examples) -> Iterator[tuple[str, ArrayBatch]]:
        size = self.run.experiment.data.batch
        for name, batch in (
            ("training batches", self.run.batch(0)),
            ("validation", next(iter(examples.data.validation_batches(size)), None)),
        ):
            if isinstance(batch, ArrayBatch) and batch.targets.is_floating_point():
                yield name, batch

    def _window(self, name: str, history: Array, future: Array, data: object) -> Findings:
        """One batch of histories [B, T, M] and futures [B, H, M]."""
        varies = history.std(1).max(1) > 1e-6
        history, future = history[varies], future[varies]
        if len(history) < 4 or history.shape[1] < 4:
            return
        where = f"{name}, targets"
        ahead = leaked(history, future)
        if ahead is not None:
            share, points, place = ahead
            evidence = f"in {share:.0%} of the windows the first {points} point(s) to forecast are in the inputs, from "
            evidence += f"point {place} of {history.shape[1]} on"
            cause = "inputs and targets overlap, so that copying is enough"
            yield self.finding(where, evidence, cause, FIX)
            return
        if isinstance(data, SeriesData) and type(data) is SeriesData:
            found = matched(data, history, future)
            if found is not None:
                evidence, cause = found
                yield self.finding(where, evidence, cause, FIX)
                return
        yield from self._gap(where, history, future)
        if name.startswith("training") and isinstance(data, SeriesData):
            yield from self._held_out(data, history, future)

    def _gap(self, where: str, history: Array, future: Array) -> Findings:
        """A first target that does not follow the last input."""
        steps = [
            np.abs(history[:, -1] - history[:, -1 - lag]).mean() for lag in range(1, min(FARTHEST, history.shape[1]))
        ]
        first = float(np.abs(future[:, 0] - history[:, -1]).mean())
        inner = float(np.abs(np.diff(history, axis=1)).mean())
        random = float(np.abs(history[:, -1] - np.roll(history[:, -1], len(history) // 2, 0)).mean())
        if first < GAP * max(inner, steps[0]) or inner > SMOOTH * random:
            return
        lag = 1 + int(np.argmin(np.abs(np.array(steps) - first)))
        scale = float(future.std() / max(history.std(), 1e-9))
        evidence = (
            f"the first point to forecast is {first:.3g} from the last input, where neighbors are {inner:.3g} apart"
        )
        if lag > 1 and 0.5 < scale < 2:
            evidence += f" and points at a distance of {lag} {steps[lag - 1]:.3g}"
        else:
            evidence += f"; the deviation of the targets is {scale:.3g} times that of the inputs"
        cause = "targets do not follow the inputs: a gap, another window, another order of the series or another scale"
        yield self.finding(where, evidence, cause, FIX)

    def _held_out(self, data: SeriesData, history: Array, future: Array) -> Findings:
        """Training windows with points of a held-out part."""
        limit = data.starts["validation"] if data.validation_count else len(data.rows)
        starts = places_of(data.rows, history)
        ends = starts + history.shape[1] + future.shape[1]
        wrong = (starts >= 0) & (ends > limit)
        if wrong.mean() > 0.02:
            evidence = f"{wrong.mean():.0%} of the windows end after row {limit:,}, where the validation part begins"
            cause = "training windows are drawn from the whole table, so the validation part is trained on"
            yield self.finding("training batches", evidence, cause, "draw windows from the training rows alone")

    def _scale(self, data: SeriesData) -> Findings:
        """Series are standardized by the rows of their training part."""
        stop = data.starts["validation"] if data.validation_count else len(data.rows)
        rows = data.rows.astype(np.float64)
        known, whole = rows[:stop], rows
        off = max(abs(known.mean(0)).max(), abs(np.where(known.std(0) > 0, known.std(0), 1.0) - 1).max())
        all_rows = max(abs(whole.mean(0)).max(), abs(np.where(whole.std(0) > 0, whole.std(0), 1.0) - 1).max())
        if off < STANDARD or not np.isfinite(off):
            return
        evidence = f"means of the series in the training rows are up to {abs(known.mean(0)).max():.3g}, deviations "
        evidence += f"{known.std(0).min():.3g} to {known.std(0).max():.3g}"
        cause = "the series are not standardized by their training rows"
        if all_rows < STANDARD / 2:
            evidence += "; in all rows they are 0 and 1"
            cause = "the scale is that of the whole table: training and inputs know about the held-out future"
        yield self.finding("scale of the series", evidence, cause, "standardize by mean and deviation of training rows")


def leaked(history: Array, future: Array) -> tuple[float, int, int] | None:
    """The share of windows whose first targets are in their inputs, how many points, and where they begin there."""
    points, length = min(3, future.shape[1]), history.shape[1]
    steps = np.abs(np.diff(history, axis=1)).max(2)  # [B, T - 1]
    # A series may stand still; its last points are then equal without an overlap.
    moving = steps.mean(1) > 10 * EQUAL
    first = np.abs(history - future[:, :1]).max(2) < EQUAL  # [B, T]
    for place in np.flatnonzero(first[:, 1:].mean(0) > MOST / 2)[::-1] + 1:
        some = min(points, length - place)
        same = np.abs(history[:, place : place + some] - future[:, :some]).max((1, 2)) < EQUAL
        changed = moving & (steps[:, place - 1] > 10 * EQUAL)
        if changed.sum() >= 4 and same[changed].mean() > MOST:
            return float(same[changed].mean()), min(future.shape[1], length - int(place)), int(place)
    return None


def places_of(rows: Array, windows: Array) -> Array:
    """Where each window [B, T, M] begins in the rows of the table; -1: nowhere, or more than once."""
    short = rows.astype(np.float32)
    found = np.full(len(windows), -1)
    for number, window in enumerate(windows.astype(np.float32)):
        length = min(8, len(window))
        places = np.flatnonzero((np.abs(short[: len(short) - len(window) + 1] - window[0]) < EQUAL).all(1))
        places = [p for p in places.tolist() if np.abs(short[p : p + length] - window[:length]).max() < EQUAL]
        found[number] = places[0] if len(places) == 1 else -1
    return found


def matched(data: SeriesData, history: Array, future: Array) -> tuple[str, str] | None:
    """What is wrong with windows, from the rows of the table."""
    starts = places_of(data.rows, history)
    known = starts >= 0
    if known.mean() < 0.5:
        return None
    after = starts[known] + history.shape[1]
    due = np.stack([data.rows[a : a + 1] for a in after if a < len(data.rows)]) if len(after) else np.zeros((0, 1, 1))
    wanted = future[known][: len(due)]
    if not len(due) or np.abs(due[:, 0] - wanted[:, 0]).max() < EQUAL:
        return None
    ends = places_of(data.rows, wanted) if wanted.shape[1] > 1 else np.full(len(wanted), -1)
    gaps = (ends - after[: len(ends)])[ends >= 0]
    if len(gaps) >= 4 and (np.bincount(gaps - gaps.min()).max() > MOST * len(gaps)):
        gap = int(np.bincount(gaps - gaps.min()).argmax() + gaps.min())
        evidence = f"they begin {gap} points after the end of their inputs, where they should follow at once"
        return evidence, "a gap between inputs and targets" if gap > 0 else "inputs and targets overlap"
    share = float((np.abs(due[:, 0] - wanted[:, 0]).max(1) > EQUAL).mean())
    evidence = f"in {share:.0%} of the windows the first point to forecast is not the row of the table after the inputs"
    return evidence, "targets are taken from other windows, or changed"
