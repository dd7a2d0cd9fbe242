"""Simple classifiers, which know nothing of the run's model: do labels belong to inputs?"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from regard.doctor.examples import Array, Sample

NEIGHBORS, FOLDS = 7, 5
POOLED, FRAMES, BANDS, SEGMENTS = 12, 512, 24, 8  # pixels of a side; points and bands of a spectrum; parts of a series
SOUND = 1500  # points from which on one or two channels are read as a sound
WORDS = 4093  # counted tokens, by their number modulo this prime
Labels = NDArray[np.int64]
Classify = Callable[[Array, Labels, Array, int], Labels]  # inputs, their labels, other inputs, classes -> predictions


def neighbors(known: Array, labels: Labels, asked: Array, classes: int) -> Labels:
    """The class with most votes of the nearest ``NEIGHBORS`` of ``known`` [R, F] for each row of ``asked`` [Q, F]."""
    distances = (known**2).sum(1) - 2 * asked @ known.T
    count = min(NEIGHBORS, len(known))
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(distances, nearest, 1) + (asked**2).sum(1)[:, None]
    weights = 1 / (near - near.min(1, keepdims=True) + 0.1 * near.mean(1, keepdims=True) + 1e-9)
    votes = np.zeros((len(asked), classes))
    for place in range(count):
        np.add.at(votes, (np.arange(len(asked)), labels[nearest[:, place]]), weights[:, place])
    return votes.argmax(1)


def naive_bayes(known: Array, labels: Labels, asked: Array, classes: int) -> Labels:
    """Multinomial naive Bayes on counts [R, F]."""
    members = np.eye(classes, dtype=known.dtype)[labels]  # [R, C]
    counts = members.T @ known + 0.5
    scores = np.log(counts) - np.log(counts.sum(1, keepdims=True))
    return (asked @ scores.T + np.log(members.sum(0) + 0.5)).argmax(1)


def most_frequent(known: Array, labels: Labels, asked: Array, classes: int) -> Labels:
    """The most frequent label of each token [R, 1]; for new ones, that of all."""
    size = int(max(known.max(), asked.max())) + 1
    table = np.zeros((size, classes), np.int64)
    np.add.at(table, (known[:, 0], labels), 1)
    best = np.where(table.sum(1) > 0, table.argmax(1), np.bincount(labels).argmax())
    return best[asked[:, 0]]


def crossed(classify: Classify, inputs: Array, labels: Labels, classes: int) -> Labels:
    """Predictions for each fifth of the examples from the other ones."""
    found = np.zeros(len(labels), np.int64)
    order = np.random.default_rng(1).permutation(len(labels))
    for fold in range(FOLDS):
        asked, known = order[fold::FOLDS], np.concatenate([order[k::FOLDS] for k in range(FOLDS) if k != fold])
        found[asked] = classify(inputs[known], labels[known], inputs[asked], classes)
    return found


def lift(right: float, labels: Labels) -> float:
    """How far the share of right predictions is above that of the most frequent label: 1 is perfect, 0 is useless."""
    majority = np.bincount(labels).max() / len(labels)
    return float((right - majority) / max(1 - majority, 1e-9))


def tail(count: int, hits: float, rate: float) -> float:
    """A bound of the probability of at most ``hits`` of ``count`` at this rate (Chernoff)."""
    share, rate = hits / max(count, 1), min(max(rate, 1e-9), 1 - 1e-9)
    if share >= rate:
        return 1.0
    terms = [(share, rate), (1 - share, 1 - rate)]
    return math.exp(-count * sum(p * math.log(p / q) for p, q in terms if p > 0))


def features(*samples: Sample) -> tuple[list[Array], Classify]:
    """The features [R, F] of the rows of each sample, and the classifier for them."""
    if not samples[0].arrays:
        found = [np.stack([np.bincount(row % WORDS, minlength=WORDS) for row in one.rows]) for one in samples]
        return [one.astype(np.float32) for one in found], naive_bayes
    shapes = samples[0].rows[0].shape
    if len(shapes) > 2 and all(one.alike for one in samples):
        return [pooled(np.stack(one.rows)) for one in samples], neighbors
    length = float(np.median([row.shape[-1] for row in samples[0].rows]))
    read = spectrum if len(shapes) == 2 and shapes[0] <= 2 and length > SOUND else summary
    summaries = [np.stack([read(row) for row in one.rows]) for one in samples]
    means, deviations = summaries[0].mean(0), summaries[0].std(0)
    kept = deviations > 1e-6 * (np.abs(means) + 1e-6)
    scaled = [((one - means)[:, kept] / deviations[kept]).astype(np.float32) for one in summaries]
    return [np.nan_to_num(one).clip(-1e3, 1e3) for one in scaled], neighbors


def pooled(images: Array) -> Array:
    """Images [R, M, Y, X], or clips with an axis more, with at most ``POOLED`` pixels on each side; flat."""
    given = torch.from_numpy(images)
    sides = [min(POOLED, side) for side in given.shape[2:]]
    pool = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}.get(len(sides))
    given = given if pool is None else pool(given, sides)
    return given.flatten(1).numpy().astype(np.float32)


def summary(signal: Array) -> Array:
    """What a series [M, T] is like: means of its parts, deviations and changes."""
    if signal.ndim == 1:
        return signal.astype(np.float64)
    signal = signal.reshape(len(signal), -1).astype(np.float64)
    length = signal.shape[1]
    edges = np.linspace(0, length, SEGMENTS + 1).astype(int)
    parts = [signal[:, a : max(b, a + 1)].mean(1) for a, b in pairwise(edges.tolist()) if a < length]
    parts += [parts[-1]] * (SEGMENTS - len(parts))
    change = np.abs(np.diff(signal, axis=1)).mean(1) if length > 1 else np.zeros(len(signal))
    return np.concatenate([*parts, signal.mean(1), signal.std(1), change])


def spectrum(signal: Array) -> Array:
    """The logarithm of the power in bands of a sound [M, T]: its mean over time, and its deviation."""
    signal = signal.mean(0).astype(np.float64)
    signal = np.pad(signal, (0, max(0, FRAMES - len(signal))))
    frames = np.lib.stride_tricks.sliding_window_view(signal, FRAMES)[:: FRAMES // 2] * np.hanning(FRAMES)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.unique(np.geomspace(1, power.shape[1], BANDS + 1).astype(int))
    bands = np.log(np.add.reduceat(power, edges[:-1], axis=1) + 1e-8)
    return np.concatenate([bands.mean(0), bands.std(0)])
