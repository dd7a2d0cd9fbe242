"""One update: micro-batches, their exact sum, the gradient's norm, and a look at both before anything moves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data import Data
from regard.errors import UserError
from regard.models import Model
from regard.nn.auxiliary_loss import auxiliary_layers
from regard.tasks import Task, Term
from regard.train.device import move
from regard.train.experiment import Experiment
from regard.train.precision import Precision
from regard.train.seeding import DROPOUT, WEIGHTS, mix, seed_generators
from regard.train.shard import World, shard, whole

#: While steps are still being worked out, any schedule is at its very beginning.
CALIBRATING = 10**9


@dataclass
class Progress:
    """Where a run stands. The three counters go their own ways, and each is restored by its own function."""

    step: int = 0  # updates done
    schedule: int = 0  # the step that the schedule sees
    position: int = 0  # micro-batches taken from the data
    noise: int = 0  # micro-batches that drew from the dropout stream
    tokens: int = 0  # counted targets seen
    seconds: float = 0.0  # spent training, earlier sittings included


class Update(NamedTuple):
    """What one update showed."""

    loss: float  # before the update, over all micro-batches and ranks
    norm: float  # of the gradient, before clipping
    rate: float  # the learning rate used
    finite: bool  # False: nothing was changed
    terms: dict[str, float]  # each term of the loss by itself, before its weight


class Engine:
    """A model, its optimizer and its data, able to do the next step.

    Weights are a function of (config, seed); what an update does is one of (weights, optimizer state, counters).
    """

    def __init__(self, experiment: Experiment, data: Data[Any], world: World):
        config = experiment.train
        self.experiment, self.world, self.device = experiment, world, world.device
        self.data: Any = data  # a Data; tests and studies replace parts of it
        self.precision = Precision(config.precision, self.device)
        self.scaler = self.precision.scaler()
        self.task: Task = experiment.task.build()
        self.progress = Progress()
        # On the CPU first: its generator gives the same weights whatever the device.
        torch.manual_seed(mix(experiment.seed, WEIGHTS))
        self.model: Model = experiment.model.build()
        self.model.to(self.device)
        self.model.checkpointing = config.checkpointing
        #: The task's function, compiled or not; `model` itself stays as it was built, so that hooks on it fire.
        self.terms: Callable[[Model, Any], dict[str, Term]] = self.task.terms
        self.graphs = config.compile == "graphs" and self.device.type == "cuda"
        #: Layers that add to the loss, and what they told in the last update, by micro-batch.
        self.auxiliary_layers = auxiliary_layers(self.model)
        self.told: list[dict[str, Tensor]] = []
        if self._compiles():
            self._compile()
        shard(self.model, world)
        self.optimizer = config.optimizer.build(self.model)
        #: Parts that draw anew as training goes on, as a function of the step.
        self._advances: list[Any] = [mechanism.advance for _, mechanism in self.model.mechanisms()]
        self._ahead: tuple[int, list[Any]] | None = None

    def _compiles(self) -> bool:
        asked, recomputed = self.experiment.train.compile, self.experiment.train.checkpointing and self.auxiliary_layers
        if not recomputed or self.world.size == 1:
            return compiles(asked, self.model, self.data.dynamic_shapes, self.device)
        if asked in (True, "graphs"):  # a block compiled by itself keeps other things when nobody listens
            raise UserError("blocks of experts that are recomputed cannot be compiled by many; set compile to auto")
        return False

    def _compile(self) -> None:
        if self.world.size == 1:
            mode = "reduce-overhead" if self.graphs else None
            if (
                self.auxiliary_layers
            ):  # what a layer tells is an effect beside its output; recomputed, nobody listens anyway
                torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True  # type: ignore[attr-defined]
            self.terms = torch.compile(self.task.terms, fullgraph=True, dynamic=self.data.dynamic_shapes, mode=mode)
            return
        for block in self.model.blocks:
            # FSDP's own work between the blocks cannot be traced.
            block.compile(fullgraph=True, dynamic=self.data.dynamic_shapes)

    def batch(self, position: int) -> Any:
        """Micro-batch number `position` of this rank, on the CPU."""
        world = self.world
        return self.data.batch(
            position,
            seed=self.experiment.seed,
            rank=world.rank,
            world=world.size,
            size=self.experiment.data.batch,
        )

    def seed_noise(self, noise: int) -> None:
        """Put the generators where micro-batch number `noise` finds them."""
        seed_generators(mix(self.experiment.seed, DROPOUT, self.world.rank, noise), self.device)

    def update(self) -> Update:
        """One step: counts, losses, gradients, one look at the numbers, the update. Moves the counters.

        When loss or gradient is not finite, neither weights nor counters change, except for an overflow in float16,
        which only costs the update.
        """
        progress, config = self.progress, self.experiment.train
        batches = self._batches(progress.position)
        counts = self._counts(batches)
        batches = [move(batch, self.device) for batch in batches]
        if not self.model.training:
            self.model.train()
        self.optimizer.zero()
        for advance in self._advances:
            advance(progress.step)
        if self.graphs:  # what the graphs of the last step gave, gradients above all, is given up
            torch.compiler.cudagraph_mark_step_begin()
        losses, terms, pieces = [], {}, float(len(batches) * self.world.size)
        self.told = []
        for number, batch in enumerate(batches):
            self.seed_noise(progress.noise + number)
            with self.precision.autocast():
                terms = self.terms(self.model, batch)
                parts = shares(terms, counts, pieces)
                loss = sum(parts[1:], start=parts[0])
            (loss * self.scaler.scale if self.scaler.active else loss).backward()
            losses.append(torch.stack([part.detach() for part in parts]))
            self.told += [term.details for term in terms.values() if term.details is not None]
        if self.device.type != "cpu":  # the next batch is gathered while the device works
            self._ahead = (progress.position + len(batches), self._batches(progress.position + len(batches)))
        gradients = [p.grad for p in self.optimizer.parameters if p.grad is not None]
        parts, norm = self._look(losses, gradients)
        loss = sum(parts)
        each = {name: part / (term.weight or 1.0) for (name, term), part in zip(terms.items(), parts, strict=True)}
        norm /= self.scaler.scale
        factor = config.schedule.factor(progress.schedule, config.steps or CALIBRATING)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and (not math.isfinite(loss) or self.scaler.exhausted):
            return Update(loss, norm, 0.0, False, each)
        self.scaler.update(overflow=not finite)
        if finite:
            self._clip(gradients, norm)
            self.optimizer.step(factor)
        progress.step += 1
        progress.schedule += 1
        progress.position += len(batches)
        progress.noise += len(batches)
        progress.tokens += round(next(iter(counts.values())))
        return Update(loss, norm, self.optimizer.rates(factor)[0], True, each)

    def details(self) -> dict[str, Any]:
        """What the model's layers told in the last update, as means over micro-batches and ranks; all ranks call it."""
        if not self.told:
            return {}
        means = {name: torch.stack([told[name] for told in self.told]).double().mean(0).cpu() for name in self.told[0]}
        flat = torch.cat([mean.flatten() for mean in means.values()]).tolist()
        summed = torch.tensor(self.world.sums(flat), dtype=torch.float64) / self.world.size
        pieces = summed.split([mean.numel() for mean in means.values()])
        return {
            name: _rounded(piece.view(mean.shape)) for (name, mean), piece in zip(means.items(), pieces, strict=True)
        }

    def forget(self) -> None:
        """Let go of gradients and of batches gathered ahead."""
        self.optimizer.zero()
        self._ahead, self.told = None, []

    def _batches(self, position: int) -> list[Any]:
        if self._ahead is not None and self._ahead[0] == position:
            return self._ahead[1]
        return [self.batch(position + number) for number in range(self.experiment.train.accumulate)]

    def _counts(self, batches: list[Any]) -> dict[str, float]:
        """Of each term, how many targets the whole update counts, over micro-batches and ranks."""
        counted = [self.task.counts(batch) for batch in batches]
        names = list(counted[0])
        sums = [float(sum(int(counts[name]) for counts in counted)) for name in names]
        return dict(zip(names, self.world.sums(sums), strict=True))

    def _look(self, losses: list[Tensor], gradients: list[Any]) -> tuple[list[float], float]:
        """The loss in its terms and the gradient norm, over all ranks, with one wait for the device."""
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        *parts, length = torch.cat([*losses, norm.to(losses[0].dtype)[None]]).tolist()
        count = len(losses[0])
        return self.world.sums([sum(parts[term::count]) for term in range(count)]), length

    def _clip(self, gradients: list[Any], norm: float) -> None:
        clip = self.experiment.train.clip
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        factor /= self.scaler.scale
        if factor != 1.0:
            torch._foreach_mul_(gradients, factor)


def compiles(asked: bool | str, model: Model, dynamic: bool, device: torch.device) -> bool:
    """Whether to compile. What was asked for by name and cannot be had is an error."""
    able = model.compilable
    if not able and asked in (True, "graphs"):
        raise UserError(f"a {type(model).__name__} cannot be compiled; set --train.compile to auto or false")
    if asked == "graphs" and dynamic:
        raise UserError("compile = graphs needs batches of one shape, and these differ; set --train.compile to auto")
    # Rows of sentences have another shape in every batch: compiling for those takes longer than it saves.
    chosen = asked == "graphs" or (asked == "auto" and not dynamic)
    return able and (asked is True or (chosen and device.type == "cuda"))


def shares(terms: dict[str, Term], counts: dict[str, float], pieces: float) -> list[Tensor]:
    """The loss, term by term: each sum by the count of the whole update, so that the parts of an update simply add up.

    What no batch can count, because a layer told it, counts once for each of the update's `pieces`, its micro-batches.
    """
    return [term.total * (term.weight / max(counts.get(name, pieces), 1.0)) for name, term in terms.items()]


def _rounded(numbers: Tensor) -> Any:
    """As nested lists, for a file that people read."""
    return torch.round(numbers, decimals=4).tolist()
