"""Matrices whose gradient lacks a component: along a random direction the loss changes, and they predict no change.

A step along the gradient itself never shows what is missing from it. Each matrix that is stacked in a layer, such as
queries, keys and values, or the gates of a recurrent layer, is moved by itself, in a copy of the model in float64. As
most models are sound, all are moved together first: in float64 that shows a component that one of them lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties
from regard.attention.mechanisms.segments import Segmented
from regard.doctor import Check, Findings, ModelPass, TrainingRun
from regard.doctor.gradients import layer_parts
from regard.doctor.model_pass import first_rows
from regard.look import evaluation_mode
from regard.models.base import Model
from regard.prove.batches import Batch, has_tokens

MOST = 2**23  # parameters of a model that is copied
MATRICES = 24  # in one examination; further ones come in the next
POSITIONS = 2048  # about as many times a row of a matrix is used, in all passes of one examination
ROWS, LENGTH = 2, 24
STEP = 1e-5  # relative to the norm of the matrix
#: Between the measured and the predicted change, relative to the larger one; and to what a gradient of the norm of the
#: whole layer's would give along a random direction, below which a difference is rounding.
APART, SMALLEST = 0.3, 1e-3
DIRECTIONS = 3  # random ones, all of which must disagree
Matrix = tuple[str, nn.Parameter, slice]


class Move(NamedTuple):
    """A matrix, what its gradient is said to be, and a random direction [rows, columns] of norm 1."""

    parameter: nn.Parameter
    rows: slice
    gradient: Tensor
    direction: Tensor
    reach: float  # the length of a step

    @classmethod
    def random(cls, parameter: nn.Parameter, rows: slice, gradient: Tensor, seed: int) -> Move:
        """A random direction, the same for the same seed and shape."""
        part, generator = parameter.data[rows], torch.Generator().manual_seed(seed)
        direction = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        return cls(parameter, rows, gradient[rows], direction / direction.norm(), STEP * max(float(part.norm()), 1e-3))

    @property
    def predicted(self) -> float:
        """The change of the loss per length of the step."""
        return float((self.gradient * self.direction).sum())

    @property
    def usual(self) -> float:
        """The size that the predicted change has along most directions."""
        return float(self.gradient.norm()) / self.direction.numel() ** 0.5


class MissingComponent(Check):
    kind, description = "missing_component", "a part of the gradient is missing"
    rank = 0
    follows = ("random_numbers", "wrong_derivative", "exploding_gradients", "saturated_units")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._next = 0  # the first matrix that has not been tried

    def on_pass(self, model_pass: ModelPass) -> Findings:
        model = model_pass.model
        modules = list(model.modules())
        jumps = any(isinstance(m, Segmented) or (isinstance(m, ModuleProperties) and m.discontinuous) for m in modules)
        if not model_pass.deep or jumps or sum(p.numel() for p in model.parameters()) > MOST or model.carries_state:
            return
        if model_pass.run.device.type != "cpu" or any(type(p) is not nn.Parameter for p in model.parameters()):
            return  # quantized weights
        names, tokens = [name for name, _, _ in matrices(model)], has_tokens(model_pass.batch)
        count = min(MATRICES, POSITIONS // (ROWS * max(1, min(model_pass.vectors, LENGTH if tokens else 2**30))))
        chosen, self._next = range(self._next, min(self._next + count, len(names))), self._next + count
        if not chosen:
            return
        try:
            wrong = list(wrong_components(model_pass, set(chosen)))
        except RuntimeError:  # something in the model keeps to float32
            return
        for name, measured, predicted in wrong:
            evidence = f"along random directions the loss changes by {measured:.2g} where it predicts {predicted:.2g}"
            cause = "a detach, a no_grad or a wrong backward pass cuts off this matrix, or a part of what it acts on"
            yield self.finding(name, evidence, cause, "follow its output to the loss; test it with autograd.gradcheck")


def matrices(model: nn.Module) -> Iterator[Matrix]:
    """The trained matrices of the layers; those that are stacked in one weight one by one."""
    for members in layer_parts(model, frozen=False).values():
        for name, parameter in members:
            if parameter.ndim < 2:
                continue
            layer = model.get_submodule(name.rpartition(".")[0])
            parts = getattr(layer, "parts", (len(parameter),))
            if isinstance(layer, nn.RNNBase):  # its gates
                parts = (layer.hidden_size,) * (len(parameter) // layer.hidden_size)
            parts = parts if sum(parts) == len(parameter) else (len(parameter),)
            ends = [sum(parts[: i + 1]) for i in range(len(parts))]
            for number, (size, end) in enumerate(zip(parts, ends, strict=True)):
                where = f"{name}, matrix {number + 1} of {len(parts)}" if len(parts) > 1 else name
                yield where, parameter, slice(end - size, end)


def wrong_components(model_pass: ModelPass, chosen: set[int]) -> Iterator[tuple[str, float, float]]:
    """Of the chosen matrices those whose derivative along random directions is not what their gradient says."""
    batch = in_float64(first_rows(model_pass.few, ROWS, LENGTH))
    model = deepcopy(model_pass.model).double()
    found = [one for number, one in enumerate(matrices(model)) if number in chosen]
    with evaluation_mode(model):
        with torch.enable_grad():
            parameters = list(dict.fromkeys(p for _, p, _ in found))
            loss = summed(model_pass, model, batch)
            if not loss.requires_grad or not bool(loss.isfinite()):
                return
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        of = {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None and bool(g.any())}
        tried = [one for one in found if one[1] in of]  # `vanishing_gradients` reports those without any gradient
        losses = partial(_losses, model_pass, model, batch)
        if not tried or _agree(losses, [Move.random(p, rows, of[p], n) for n, (_, p, rows) in enumerate(tried)]):
            return
        for name, parameter, rows in tried:
            moves = (Move.random(parameter, rows, of[parameter], seed) for seed in range(DIRECTIONS))
            trials = list(takewhile(lambda trial: trial[0], (_trial(losses, move) for move in moves)))
            if len(trials) == DIRECTIONS:
                yield name, trials[0][1], trials[0][2]


Losses = Callable[[Sequence[Move]], tuple[float, float]]


def _losses(model_pass: ModelPass, model: Model, batch: Batch, moves: Sequence[Move]) -> tuple[float, float]:
    """The losses after a step of all moves forward, and after one back."""
    before = [move.parameter.data[move.rows].clone() for move in moves]
    losses = []
    for sign in (1, -1):
        for move, old in zip(moves, before, strict=True):
            move.parameter.data[move.rows] = old + sign * move.reach * move.direction
        losses.append(float(summed(model_pass, model, batch)))
    for move, old in zip(moves, before, strict=True):
        move.parameter.data[move.rows] = old
    return losses[0], losses[1]


def _agree(losses: Losses, moves: Sequence[Move]) -> bool:
    """Whether all matrices, moved together, change the loss as predicted, but for what is rounding for each of them."""
    forward, back = losses(moves)
    predicted = sum(2 * move.reach * move.predicted for move in moves)
    least = min(2 * move.reach * SMALLEST * move.usual for move in moves)
    return abs(forward - back - predicted) <= max(least, 2e-10 * abs(forward))


def _trial(losses: Losses, move: Move) -> tuple[bool, float, float]:
    """Whether the derivative along a random direction is wrong; the measured and the predicted one."""
    forward, back = losses([move])
    measured, predicted = (forward - back) / (2 * move.reach), move.predicted
    least = max(SMALLEST * move.usual, 1e-10 * abs(forward) / move.reach)
    apart = abs(measured - predicted)
    return apart > APART * max(abs(measured), abs(predicted)) and apart > least, measured, predicted


def summed(model_pass: ModelPass, model: Model, batch: Batch) -> Tensor:
    """The summed loss of another model."""
    return next(iter(model_pass.run.task.terms(model, batch).values())).total


def in_float64(batch: Batch) -> Batch:
    """The batch with its arrays in float64."""
    fields = batch._asdict().items()
    return batch._replace(**{k: x.double() for k, x in fields if isinstance(x, Tensor) and x.is_floating_point()})
