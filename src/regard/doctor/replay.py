"""Replays of single training steps: a second engine, built from the run's config, makes the same step.

Given the same weights, optimizer state and batch numbers it must get the same loss, gradients and weights. Where it
does not, the run is not what its config describes, and the first thing that differs is the place of the fault.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import override
from regard.data import Batch, Data
from regard.doctor.calls import ModuleCall, describe, difference, record_calls
from regard.doctor.modes import isolated, training_mode
from regard.look import evaluation_mode
from regard.models.base import Model
from regard.parallel.world import World
from regard.prove.batches import take_rows
from regard.train import Experiment, Optimizer, TrainingStep
from regard.train.device import move
from regard.train.engine import Engine, Update

#: A difference relative to the size of a tensor that is more than rounding: the same operations in the same order
#: differ by nothing on a CPU; on a GPU sums have no fixed order, and a compiled step rounds at other places.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
#: Copies that a replay holds: the second model, its gradient and optimizer state, the weights and gradients before.
COPIES = 8
#: The share of the memory that these copies may take.
ROOM = 0.05
TOKENS = 2048  # of a pass in which modules are compared


class Divergence(NamedTuple):
    """The first module of the run whose output is not that of the module built from the config."""

    where: str
    what: str  # how the two differ
    size: float


class ParameterChange(NamedTuple):
    """Of one parameter: the gradient that the optimizer was given and its update, in the run and as expected."""

    gradient: Tensor
    expected_gradient: Tensor
    update: Tensor
    expected_update: Tensor
    weight: Tensor  # before the step
    earlier: Tensor | None  # the gradient of the step before


class PredictedParameter(NamedTuple):
    """One parameter before a step of the run, and after the predicted one."""

    before: Tensor
    earlier: Tensor | None  # the gradient of the step before
    gradient: Tensor | None  # after clipping
    after: Tensor


@dataclass(frozen=True)
class ReplayedStep:
    """One step of the run, and what its definition gives."""

    step: TrainingStep
    expected: Update
    position: int  # micro-batches consumed before the step
    changes: dict[str, ParameterChange]
    tolerance: float
    divergence: Divergence | None  # None: all modules agree, or the steps do

    @property
    def loss_differs(self) -> bool:
        """Whether the losses differ by more than rounding."""
        return abs(self.step.loss - self.expected.loss) > min(self.tolerance, 0.02) * max(abs(self.expected.loss), 1e-3)

    @cached_property
    def lengths(self) -> tuple[float, float]:
        """The norms of the whole gradient after clipping, in the run and as expected."""
        total, changes = torch.nn.utils.get_total_norm, self.changes.values()
        return float(total([c.gradient for c in changes])), float(total([c.expected_gradient for c in changes]))

    @property
    def scales(self) -> tuple[float, float]:
        """What clipping has divided the gradients by, in the run and as expected."""
        (got, want), norms = self.lengths, (self.step.norm, self.expected.norm)
        return norms[0] / got if got else 1.0, norms[1] / want if want else 1.0

    @cached_property
    def wrong_gradients(self) -> list[str]:
        """The parameters whose gradient, before clipping, differs by more than rounding."""
        if all(torch.equal(c.gradient, c.expected_gradient) for c in self.changes.values()):
            return []
        ours, theirs = self.scales
        least = 0.0 if self.tolerance < 0.01 else 0.05 * self.expected.norm  # 16 bits round small gradients away
        pairs = {n: (c.gradient * ours, c.expected_gradient * theirs) for n, c in self.changes.items()}
        return [name for name, (one, other) in pairs.items() if _apart(one, other, self.tolerance, least)]

    @property
    def clipping_differs(self) -> bool:
        """Whether the gradients agree before clipping only."""
        got, want = self.lengths
        return abs(got - want) > 2 * self.tolerance * max(got, want)

    def wrong_updates(self) -> list[str]:
        """The parameters whose update differs by more than rounding, which Adam's division magnifies."""
        tolerance = min(5 * self.tolerance, 0.9)
        return [n for n, c in self.changes.items() if _apart(c.update, c.expected_update, tolerance)]


class RecordingEngine(Engine):
    """An engine that keeps its clipped gradients as they are before the optimizer gets them."""

    def _clip(self, gradients: list[Tensor], norm: float) -> None:
        super()._clip(gradients, norm)
        owners = (p for p in self.optimizer.parameters if p.grad is not None)
        self.clipped: dict[Tensor, Tensor] = {p: g.clone() for p, g in zip(owners, gradients, strict=True)}


class Replay:
    """The second engine. ``model`` and ``optimizer`` are those of the run, which it only reads."""

    def __init__(self, experiment: Experiment, data: Data, device: torch.device, model: Model, optimizer: Optimizer):
        self.model, self.optimizer = model, optimizer
        with isolated(device):
            self.engine = RecordingEngine(_uncompiled(experiment), data, World(device=device))
        self.tolerance = ROUNDING[self.engine.precision.dtype]
        self.loaded = False  # True: its weights are no longer the initial ones
        self._expected: tuple[Update, int, dict[str, PredictedParameter]] | None = None
        self._given: dict[Tensor, Tensor] = {}  # the gradients that the run's optimizer was given
        for part in optimizer.parts:
            part.register_step_pre_hook(self._note)

    def change(self, experiment: Experiment) -> None:
        """Make the next steps by a config in which the run has set a number."""
        self.engine.experiment = _uncompiled(experiment)

    def _note(self, part: torch.optim.Optimizer, *_: Any) -> None:
        if self._expected is not None:
            owned = (p for group in part.param_groups for p in group["params"] if p.grad is not None)
            self._given |= {p: p.grad.clone() for p in owned}

    @property
    def parameters(self) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
        """The run's parameter and the second engine's, by name."""
        own = dict(self.model.named_parameters(remove_duplicate=False))
        return {name: (own[name], p) for name, p in self.engine.model.named_parameters() if name in own}

    @torch.no_grad()
    def synchronize(self) -> None:
        """Take over the weights and the optimizer state of the run."""
        self.loaded = True
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.engine.model.prepare_load(weights)
        self.engine.model.load_state_dict(weights)
        names = set(self.engine.optimizer.names.values())
        state = {key: value.clone() for key, value in self.optimizer.state().items()}
        self.engine.optimizer.load({key: value for key, value in state.items() if key.rpartition("/")[0] in names})

    def predict(self, step: int, position: int) -> None:
        """Make the step after ``step``, before the run does."""
        self.synchronize()
        engine, progress = self.engine, self.engine.progress
        progress.step, progress.position = step, position
        earlier = {name: None if p.grad is None else p.grad.clone() for name, (p, _) in self.parameters.items()}
        engine.model.zero_grad(set_to_none=True)  # whatever the optimizer of the config does
        with isolated(engine.device):
            update = engine.update()
        found = {
            name: PredictedParameter(p.detach().clone(), earlier[name], engine.clipped.get(own), own.detach().clone())
            for name, (p, own) in self.parameters.items()
        }
        self._expected, self._given, engine.clipped = (update, position, found), {}, {}
        engine.release()

    @torch.no_grad()
    def compare(self, step: TrainingStep) -> ReplayedStep | None:
        """Compare the run's step with the predicted one. None if none was predicted."""
        if self._expected is None:
            return None
        (expected, position, predicted), self._expected = self._expected, None
        changes = {}
        for name, (p, _) in self.parameters.items():
            weight, earlier, gradient, after = predicted[name]
            none = torch.zeros_like(weight)
            got, want = (none if one is None else one for one in (self._given.get(p, p.grad), gradient))
            changes[name] = ParameterChange(got, want, p.detach() - weight, after - weight, weight, earlier)
        self._given = {}
        replayed = ReplayedStep(step, expected, position, changes, self.tolerance, None)
        if replayed.loss_differs or replayed.wrong_gradients:
            self.synchronize()
            batch = self.engine.batch(position)
            batch = move(take_rows(batch, slice(max(1, TOKENS // batch.inputs.shape[1]))), self.engine.device)
            training = not self.model.carries_state  # a pass in training mode would change the state
            passes = [self.calls(model, batch, training) for model in (self.model, self.engine.model)]
            replayed = replace(replayed, divergence=self.divergence(*passes))
        return replayed

    def divergence(
        self, ours: tuple[float, list[ModuleCall]], theirs: tuple[float, list[ModuleCall]]
    ) -> Divergence | None:
        """The first module whose outputs differ in passes of the run's model and of the config's over one batch."""
        for one, other in zip(ours[1], theirs[1], strict=False):
            if one.name != other.name:
                return Divergence(one.name, f"the model built from the config calls {other.name} here", 1.0)
            size = difference(one.output, other.output)
            if size > self.tolerance:
                given = zip(one.inputs, other.inputs, strict=False)
                if len(one.inputs) == len(other.inputs) and all(difference(*x) <= self.tolerance for x in given):
                    return Divergence(one.name, describe(one, other), size)
                parent = one.name.rpartition(".")[0] or "the model"
                return Divergence(parent, f"what it passes to {one.name} is another input", size)
        size = abs(ours[0] - theirs[0]) / max(abs(ours[0]), abs(theirs[0]), 1e-30)
        return Divergence("the model", "all modules agree and the loss does not", size) if size > 0.01 else None

    @torch.no_grad()
    def loss(self, replayed: ReplayedStep, share: float) -> float:
        """The loss of a step's own batches, with its dropout, after ``share`` of its update."""
        for name, (_, own) in self.parameters.items():
            own.copy_(replayed.changes[name].weight + share * replayed.changes[name].update)
        total, count, engine = 0.0, 0.0, self.engine
        for place in engine.experiment.micro_batches(replayed.position, engine.lanes):
            batch = engine.batch(*place)
            total += self.total(engine.model, move(batch, engine.device), True, place)
            count += float(next(iter(engine.task.counts(batch).values())))
        return total / max(count, 1.0)

    @torch.no_grad()
    def updates_with(self, replayed: ReplayedStep, options: Sequence[str]) -> list[Tensor]:
        """The updates of all matrices that the run would make next with other settings and this step's gradient."""
        self.synchronize()
        experiment, (_, scale) = override(self.engine.experiment, list(options)), replayed.scales
        optimizer, clip = experiment.train.optimizer.build(self.engine.model), experiment.train.clip
        optimizer.load(self.engine.optimizer.state())
        scale *= 1.0 if clip is None else min(1.0, clip / max(replayed.expected.norm, 1e-30))
        before = {name: own.detach().clone() for name, (_, own) in self.parameters.items()}
        for name, (_, own) in self.parameters.items():
            own.grad = replayed.changes[name].expected_gradient * scale
        optimizer.step(experiment.train.factor(replayed.step.step - 1))
        self.engine.release()
        return [own.detach() - before[name] for name, (_, own) in self.parameters.items() if own.ndim >= 2]

    def total(self, model: Model, batch: Batch, training: bool, place: tuple[int, int] = (0, 0)) -> float:
        """The summed loss of a batch, in training mode with the dropout of the position and lane ``place``."""
        mode: AbstractContextManager = training_mode(model, self.engine.device) if training else evaluation_mode(model)
        with mode, self.engine.precision.autocast():
            if training:
                self.engine.seed_dropout(*place)
            return float(next(iter(self.engine.task.terms(model, batch).values())).total)

    def calls(self, model: Model, batch: Batch, training: bool) -> tuple[float, list[ModuleCall]]:
        """The summed loss of a batch, and the calls of all modules."""
        totals: list[float] = []
        calls = record_calls(model, lambda: totals.append(self.total(model, batch, training)))
        return totals[0], calls


def _apart(one: Tensor, other: Tensor, tolerance: float, least: float = 0.0) -> bool:
    """Whether two tensors differ by more than ``tolerance`` of the larger one's norm, or of ``least``."""
    if torch.equal(one, other):
        return False
    return float((one - other).norm()) > tolerance * max(float(one.norm()), float(other.norm()), least)


def _uncompiled(experiment: Experiment) -> Experiment:
    return replace(experiment, train=replace(experiment.train, compile=False))
