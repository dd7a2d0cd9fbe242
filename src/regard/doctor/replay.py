"""Replays of single training steps: a second engine, built from the run's config, makes the same step.

Given the same weights, optimizer state and batch numbers it must get the same loss, gradients and weights. Where it
does not, the run is not what its config describes, and the first thing that differs is the place of the fault.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data import Batch, Data
from regard.doctor.modes import isolated, training_mode
from regard.look import evaluation_mode
from regard.models.base import Model
from regard.prove.batches import take_rows
from regard.prove.comparison import forward_hooks
from regard.train import Experiment, Optimizer, TrainingStep
from regard.train.device import move
from regard.train.engine import Engine, Update
from regard.train.shard import World

#: A difference relative to the size of a tensor that is more than rounding: the same operations in the same order
#: differ by nothing on a CPU; on a GPU sums have no fixed order, and a compiled step rounds at other places.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
#: Copies that a replay holds: the second model, its gradient and optimizer state, the weights and gradients before.
COPIES = 7
#: The share of the memory that these copies may take.
ROOM = 0.05
TOKENS = 2048  # of a pass in which modules are compared


class ModuleCall(NamedTuple):
    """One call of a module."""

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor


class Divergence(NamedTuple):
    """The first module of the run whose output is not that of the module built from the config."""

    where: str
    what: str  # how the two differ
    size: float


class ParameterChange(NamedTuple):
    """Of one parameter: its gradient and its update, in the run and as expected."""

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
    gradient: Tensor | None
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
        ours, theirs = self.scales
        least = 0.0 if self.tolerance < 0.01 else 0.05 * self.expected.norm  # 16 bits round small gradients away
        pairs = {n: (c.gradient * ours, c.expected_gradient * theirs) for n, c in self.changes.items()}
        return [name for name, (one, other) in pairs.items() if _apart(one, other, self.tolerance, least)]

    @property
    def clipping_differs(self) -> bool:
        """Whether the gradients agree before clipping only."""
        got, want = self.lengths
        return abs(got - want) > 2 * self.tolerance * max(got, want)

    @property
    def stage(self) -> str:
        """The first stage of the step that differs; "" if none does up to clipping. Later ones follow from it."""
        if self.divergence is not None:
            return "model"
        if self.loss_differs:
            return "loss"
        if self.wrong_gradients:
            return "gradient"
        return "clipping" if self.clipping_differs else ""

    def wrong_updates(self) -> list[str]:
        """The parameters whose update differs by more than rounding, which Adam's division magnifies."""
        tolerance = min(5 * self.tolerance, 0.9)
        return [n for n, c in self.changes.items() if _apart(c.update, c.expected_update, tolerance)]


class Replay:
    """The second engine. ``model`` and ``optimizer`` are those of the run, which it only reads."""

    def __init__(self, experiment: Experiment, data: Data, device: torch.device, model: Model, optimizer: Optimizer):
        self.model, self.optimizer = model, optimizer
        plain = replace(experiment, train=replace(experiment.train, compile=False))
        with isolated(device):
            self.engine = Engine(plain, data, World(device=device))
        self.tolerance = ROUNDING[self.engine.precision.dtype]
        self.loaded = False  # True: its weights are no longer the initial ones
        self._expected: tuple[Update, int, dict[str, PredictedParameter]] | None = None

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
        progress = self.engine.progress
        progress.step, progress.position = step, position
        earlier = {name: None if p.grad is None else p.grad.clone() for name, (p, _) in self.parameters.items()}
        with isolated(self.engine.device):
            update = self.engine.update()
        self._expected = (
            update,
            position,
            {
                name: PredictedParameter(p.detach().clone(), earlier[name], reference.grad, reference.detach().clone())
                for name, (p, reference) in self.parameters.items()
            },
        )
        self.engine.release()

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
            got, want = (none if one is None else one for one in (p.grad, gradient))
            changes[name] = ParameterChange(got, want, p.detach() - weight, after - weight, weight, earlier)
        replayed = ReplayedStep(step, expected, position, changes, self.tolerance, None)
        if replayed.loss_differs or replayed.wrong_gradients:
            replayed = replace(replayed, divergence=self.divergence(self.engine.batch(position), True))
        return replayed

    def divergence(self, batch: Batch, training: bool) -> Divergence | None:
        """The first module whose outputs differ in a pass over a batch with the same weights and random numbers."""
        self.synchronize()
        batch = move(take_rows(batch, slice(max(1, TOKENS // batch.inputs.shape[1]))), self.engine.device)
        training = training and not self.model.carries_state  # a pass in training mode would change the state
        models = (self.model, self.engine.model)
        (total, calls), (expected_total, expected) = (self._calls(model, batch, training) for model in models)
        for ours, theirs in zip(calls, expected, strict=False):
            if ours.name != theirs.name:
                return Divergence(ours.name, f"the model built from the config calls {theirs.name} here", 1.0)
            size = difference(ours.output, theirs.output)
            if size > self.tolerance:
                same = all(difference(x, y) <= self.tolerance for x, y in zip(ours.inputs, theirs.inputs, strict=False))
                if same and len(ours.inputs) == len(theirs.inputs):
                    return Divergence(ours.name, describe(ours, theirs), size)
                parent = ours.name.rpartition(".")[0] or "the model"
                return Divergence(parent, f"what it passes to {ours.name} is another input", size)
        size = difference(total[None], expected_total[None])
        return Divergence("the model", "all modules agree and the loss does not", size) if size > 0.01 else None

    def loss(self, model: Model, batch: Batch, seed: int) -> float:
        """The loss of a batch in training mode with the random numbers of ``seed``."""
        return float(self._calls(model, move(batch, self.engine.device), True, seed, record=False)[0])

    def _calls(
        self, model: Model, batch: Batch, training: bool, seed: int = 0, record: bool = True
    ) -> tuple[Tensor, list[ModuleCall]]:
        """The loss, and the calls of all modules in order of execution."""
        calls: list[ModuleCall] = []

        def note(name: str, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(first, Tensor) and first.is_floating_point():
                given = tuple(x.detach().clone() for x in inputs if isinstance(x, Tensor))
                calls.append(ModuleCall(name, given, first.detach().clone()))

        modules = [(name, module) for name, module in model.named_modules() if name]
        hooks = ((module, lambda *call, n=name: note(n, *call)) for name, module in modules if record)
        mode = training_mode(model, self.engine.device) if training else evaluation_mode(model)
        with mode, forward_hooks(hooks), self.engine.precision.autocast():
            self.engine.seed_dropout(seed)
            total = next(iter(self.engine.task.terms(model, batch).values())).total
        return total.detach().float(), calls


def _apart(one: Tensor, other: Tensor, tolerance: float, least: float = 0.0) -> bool:
    """Whether two tensors differ by more than ``tolerance`` of the larger one's norm, or of ``least``."""
    size = max(float(one.norm()), float(other.norm()), least)
    return float((one - other).norm()) > tolerance * size


def difference(one: Tensor, other: Tensor) -> float:
    """The norm of the difference relative to the larger norm; infinite for other shapes."""
    if one.shape != other.shape:
        return torch.inf
    one, other = one.float(), other.float()
    size = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / size if size > 0 else 0.0


def describe(ours: ModuleCall, theirs: ModuleCall) -> str:
    """How the output of one call differs from the expected one."""
    if ours.output.shape != theirs.output.shape:
        return f"its output has the shape {list(ours.output.shape)}, not {list(theirs.output.shape)}"
    if ours.output.dtype != theirs.output.dtype:
        return f"its output is {ours.output.dtype}, not {theirs.output.dtype}"
    got, want = ours.output.float(), theirs.output.float()
    inputs = [x.float() for x in ours.inputs if x.shape == got.shape]
    if not got.any():
        return "its output is zero"
    if any(difference(got, x) < 1e-3 for x in inputs):
        return "its output is its input: the layer does nothing"
    if any(difference(got, want - x) < 1e-2 for x in inputs):
        return "its output lacks its input: the residual connection is missing"
    ratio = float((got * want).sum() / want.square().sum().clamp(min=1e-30))
    if difference(got, ratio * want) < 1e-2:
        return f"its output is {ratio:.3g} times the right one"
    return _where_wrong(got, want)


def _where_wrong(got: Tensor, want: Tensor) -> str:
    """The axis along which only some entries differ."""
    axes = {got.ndim - 1: "channels"} if got.ndim < 3 else {0: "rows", 1: "positions", got.ndim - 1: "channels"}
    if got.ndim == 4:
        axes = {0: "rows", 1: "heads or positions", 2: "positions or heads", 3: "channels"}
    wrong = (got - want).abs() > 1e-3 * want.abs().max()
    for axis, name in axes.items():
        rest = [one for one in range(got.ndim) if one != axis]
        places = wrong.amax(rest).nonzero().flatten().tolist()
        if len(places) < 0.9 * got.shape[axis]:
            few = ", ".join(map(str, places[:4])) + (" ..." if len(places) > 4 else "")
            return f"{len(places)} of its {got.shape[axis]} {name} differ ({few})"
    return "its output is another one"
