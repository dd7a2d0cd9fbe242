"""The scaling law loss = E + A/N^a + B/D^b: fit, bootstrap intervals, compute-optimal sizes (Hoffmann et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

Array = NDArray[np.float64]

DELTA = 1e-3  # of the Huber loss of log losses: section D.2 of the paper
SAMPLES = 200  # of the bootstrap
LEVEL = (2.5, 97.5)  # percentiles of an interval
EXPONENTS = (0.01, 4.0)  # range of a and b
STEPS, CLOSE = 300, 1e-12  # of the minimization: most steps, and the change of the objective at which it ends
LEAST = 3  # different sizes, and different lengths, with which a law can be fitted
FLOPS = 6  # of a token, per parameter: forward and backward (Kaplan et al. 2020, section 2.1)


class Point(NamedTuple):
    """A measured loss."""

    parameters: int
    tokens: int
    loss: float


class Law(NamedTuple):
    """loss(N, D) = E + A/N^a + B/D^b: N parameters, D tokens (equation 2 of the paper)."""

    E: float
    A: float
    B: float
    a: float
    b: float

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss of a model of ``parameters`` that is trained on ``tokens``."""
        return self.E + self.A / parameters**self.a + self.B / tokens**self.b

    def optimal(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens with the lowest loss among those with 6 N D = ``flops`` (equation 4)."""
        ratio = (self.a * self.A / (self.b * self.B)) ** (1 / (self.a + self.b))
        parameters = ratio * (flops / FLOPS) ** (self.b / (self.a + self.b))
        return parameters, flops / FLOPS / parameters


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


class FittedLaw(NamedTuple):
    """A law, those of bootstrap samples, and the residuals of the log losses."""

    law: Law
    samples: Sequence[Law]
    residuals: Sequence[float]
    seed: int

    def interval(self, name: str) -> Interval:
        """A constant of the law."""
        return Interval(getattr(self.law, name), *_percentiles([getattr(one, name) for one in self.samples]))

    def predict(self, parameters: float, tokens: float) -> Interval:
        """The loss of one more training: the interval has the law's uncertainty, and the noise of a training."""
        draw = np.random.default_rng([self.seed, 1])
        noise = draw.choice(_inflated(np.array(self.residuals)), len(self.samples))
        found = [one.loss(parameters, tokens) * np.exp(r) for one, r in zip(self.samples, noise, strict=True)]
        return Interval(self.law.loss(parameters, tokens), *_percentiles(found))


def fit(points: Sequence[Point], samples: int = SAMPLES, seed: int = 1) -> FittedLaw:
    """The law with the least Huber loss of log losses, and as many of the bootstrap.

    A bootstrap sample has the fitted log losses plus residuals drawn with replacement, so that every sample has every
    size and length; residuals are scaled by (n / (n - 5))^0.5, as those of a fit of five constants are too small.
    """
    table = np.array(points, dtype=np.float64)
    if len(points) <= len(Law._fields) or any(len(set(table[:, column])) < LEAST for column in (0, 1)):
        raise UserError(
            f"a law needs more than {len(Law._fields)} finished trainings, of {LEAST} sizes and {LEAST} lengths at "
            f"least, and there are {len(points)}; give more with --sizes and --tokens"
        )
    center = np.log(table[:, :2]).mean(0)  # so that A and a, B and b are nearly independent
    x, y = np.log(table[:, :2]) - center, np.log(table[:, 2])
    begin = starts(table[:, 2])
    found, cost = minimize(begin, x, np.broadcast_to(y, (len(begin), len(y))))
    best = found[cost.argmin()]
    fitted = log_losses(best[None], x)[0][0]
    residuals = y - fitted
    draw = np.random.default_rng([seed, 0])
    noisy = fitted + draw.choice(_inflated(residuals), (samples, len(y)))
    laws, _ = minimize(np.repeat(best[None], samples, 0), x, noisy)
    return FittedLaw(_law(best, center), [_law(one, center) for one in laws], residuals.tolist(), seed)


def starts(losses: Array) -> Array:
    """Constants to start from, [R, 5]: shares of the losses that are irreducible, due to N and due to D; exponents."""
    grid = product((0.1, 0.4, 0.7, 0.95), (0.2, 0.5, 0.8), (0.1, 0.4, 1.0), (0.1, 0.4, 1.0))
    shares = [(e * losses.min(), part, a, b) for e, part, a, b in grid]
    left = losses.mean()
    return np.log([(e, (left - e) * part, (left - e) * (1 - part), a, b) for e, part, a, b in shares])


def log_losses(theta: Array, x: Array) -> tuple[Array, Array]:
    """log loss [R, n] of laws ``theta`` [R, 5], the logarithms of E, A, B, a, b; and its derivatives [R, n, 5]."""
    e, a, b, alpha, beta = np.exp(theta).T[:, :, None]  # each [R, 1]
    of_size, of_length = a * np.exp(-alpha * x[:, 0]), b * np.exp(-beta * x[:, 1])
    loss = e + of_size + of_length
    parts = [e + 0 * loss, of_size, of_length, -alpha * x[:, 0] * of_size, -beta * x[:, 1] * of_length]
    return np.log(loss), np.stack(parts, -1) / loss[..., None]


def minimize(theta: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """The least Huber loss of log losses from each start [R, 5]: the constants found, and the objective [R].

    Levenberg-Marquardt with the weights of the Huber loss. All starts run at once, so that the 200 fits of a bootstrap
    take a second; L-BFGS, which the paper uses, minimizes the same objective.
    """
    theta, damping = theta.copy(), np.full(len(theta), 1e-2)
    cost = huber(log_losses(theta, x)[0] - y)
    for _ in range(STEPS):
        value, slope = log_losses(theta, x)
        residual = value - y
        weight = np.minimum(1, DELTA / np.maximum(np.abs(residual), 1e-300))
        hessian = np.einsum("rni,rn,rnj->rij", slope, weight, slope)
        gradient = np.einsum("rni,rn,rn->ri", slope, weight, residual)
        scale = np.einsum("rii->ri", hessian) + 1e-9
        step = np.linalg.solve(hessian + np.einsum("r,ri,ij->rij", damping, scale, np.eye(5)), gradient[..., None])
        tried = bounded(theta - np.clip(step[..., 0], -1, 1))
        new = huber(log_losses(tried, x)[0] - y)
        better = new < cost
        gained = np.where(better, cost - new, 0.0).max()
        theta, cost = np.where(better[:, None], tried, theta), np.where(better, new, cost)
        damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e9)
        if gained < CLOSE and (damping > 1e3).all():
            break
    return theta, cost


def huber(residuals: Array) -> Array:
    """The summed Huber loss of [R, n]."""
    size = np.abs(residuals)
    return np.where(size <= DELTA, 0.5 * size**2, DELTA * (size - 0.5 * DELTA)).sum(-1)


def bounded(theta: Array) -> Array:
    """The constants within their ranges."""
    low, high = np.log(EXPONENTS)
    return np.concatenate((np.clip(theta[:, :3], -12, 12), np.clip(theta[:, 3:], low, high)), 1)


def _law(theta: Array, center: Array) -> Law:
    """The law whose N and D are not centered: A/N^a is A' (N/N0)^-a, with A = A' N0^a."""
    e, a, b, alpha, beta = np.exp(theta).tolist()
    return Law(e, a * float(np.exp(alpha * center[0])), b * float(np.exp(beta * center[1])), alpha, beta)


def _inflated(residuals: Array) -> Array:
    centered = residuals - residuals.mean()
    return centered * (len(residuals) / (len(residuals) - len(Law._fields))) ** 0.5


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, LEVEL)
    return float(low), float(high)
