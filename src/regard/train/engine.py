"""One optimizer step: micro-batches weighted by token, gradient norm, clipping, the update.

Nothing is updated before the loss and the gradient norm were found to be finite.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data import Batch, Data
from regard.errors import UserError
from regard.models import Model
from regard.nn.auxiliary_loss import auxiliary_layers
from regard.parallel.apply import parallelize
from regard.parallel.fsdp import GradientSync
from regard.parallel.norm import own_norm
from regard.parallel.sharded_build import fill, recorded
from regard.parallel.waiting import Waiting
from regard.parallel.world import World
from regard.runs.disk import JsonObject
from regard.tasks import Task, Term
from regard.train.context import check_task, cut
from regard.train.device import move
from regard.train.experiment import Experiment
from regard.train.precision import Precision
from regard.train.pretrained import initial_model
from regard.train.seeding import DROPOUT, derive_seed, seed_generators

Terms = Callable[[Model, Batch], dict[str, Term]]


@dataclass
class TrainingProgress:
    """The counters of a run. Batches, dropout and the learning rate are functions of the first two."""

    step: int = 0  # optimizer steps done
    position: int = 0  # micro-batches that each lane has taken from the data
    tokens: int = 0  # targets trained on
    seconds: float = 0.0  # training time, earlier sessions included
    spent: float = 0.0  # of a budget in seconds, earlier sessions included


class Update(NamedTuple):
    """The measurements of one optimizer step."""

    loss: float  # before the update, over all micro-batches and ranks
    norm: float  # of the gradient, before clipping
    lr: float
    finite: bool  # False: nothing was updated
    terms: dict[str, float]  # each term of the loss, without its weight
    interrupted: bool = False  # whether a signal had reached any rank
    rank_seconds: tuple[float, ...] = ()  # of several ranks: the work of each, without waiting for others


class Engine:
    """A model with its optimizer, task and data.

    The initial weights are a function of (config, seed), or given; an update is a function of (weights, optimizer
    state, progress).
    """

    def __init__(
        self, experiment: Experiment, data: Data[Batch], world: World, start: Mapping[str, Tensor] | None = None
    ):
        """``start``: the weights of a trained model, instead of random ones."""
        config = experiment.train
        self.experiment, self.data, self.world, self.device = experiment, data, world, world.device
        self.lanes = world.lanes(config.lanes)
        data.to(self.device)
        self.precision = Precision(config.precision, self.device)
        self.scaler = self.precision.scaler()
        self.task: Task = experiment.task.build()
        check_task(self.task, world)
        self.progress = TrainingProgress()
        build, initial = partial(initial_model, experiment), None
        if world.size == 1:
            self.model: Model = build(start).to(self.device)
        else:  # without memory for its weights, until this rank's part of them is known
            self.model, initial = recorded(build, start, say=world.rank == 0)
        self.model.checkpointing = config.checkpointing
        self.model.micro_batches = config.accumulate * len(self.lanes)
        #: The task's function, compiled or not. ``model`` itself stays uncompiled, so that its hooks run.
        self.terms: Terms = self.task.terms
        self.graphs = config.compile == "graphs" and self.device.type == "cuda"
        if self.graphs and len(self.lanes) > 1:
            raise UserError("compile = graphs holds the gradients of one lane only; set --train.compile auto")
        self.auxiliary_layers = auxiliary_layers(self.model)
        self._details: list[dict[str, Tensor]] = []  # of the last update, by micro-batch
        if world.layout.context > 1:  # what its ranks send each other cannot be traced
            self.model.compilable = False
        self._compile()
        parallelize(self.model, world, self.precision.dtype)
        if initial is not None:
            fill(self.model, initial, self.device)
        self._sync = GradientSync(self.model, world, self.model.micro_batches)
        self._waiting = Waiting(self.model, world)
        rates = config.adapt.rates(self.model)
        self.optimizer = config.optimizer.build(self.model, rates) if rates else config.optimizer.build(self.model)
        self._mechanisms = [mechanism for _, mechanism in self.model.mechanisms()]
        #: Signals that this process has received, which the training loop shares; every rank learns of them.
        self.received: Sequence[int] = ()
        self._prefetched: tuple[int, list[Batch]] | None = None  # (position, batches)
        self._counts: tuple[int, dict[str, float]] | None = None  # (position, targets per term on all ranks)

    def _compile(self) -> None:
        """Compile the task's terms, or each block by itself on several ranks, where it is asked for and possible."""
        asked, dynamic = self.experiment.train.compile, self.data.dynamic_shapes
        if self.world.size > 1 and self.experiment.train.checkpointing and self.auxiliary_layers:
            if asked in (True, "graphs"):  # a block compiled by itself saves other tensors when no loss is collected
                raise UserError("blocks of experts that are recomputed cannot be compiled by many; set compile to auto")
        elif not compiles(asked, self.model, dynamic, self.device):
            pass
        elif self.world.size > 1:  # FSDP's hooks between the blocks cannot be traced
            for block in self.model.blocks:
                block.compile(fullgraph=True, dynamic=dynamic)
        else:
            if self.auxiliary_layers:  # auxiliary losses are side effects; the recomputation must not repeat them
                torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True  # type: ignore[attr-defined]
            mode = "reduce-overhead" if self.graphs else None
            self.terms = torch.compile(self.task.terms, fullgraph=True, dynamic=dynamic, mode=mode)

    def batch(self, position: int, lane: int = 0) -> Batch:
        """Micro-batch number ``position`` of a lane, on the CPU or where ``data`` makes it."""
        return cut(self.experiment.batch(self.data, position, lane, len(self.lanes) * self.world.parts), self.world)

    def micro_batches(self) -> list[tuple[int, int]]:
        """The position and lane of each micro-batch that this rank takes in the next update."""
        return self.experiment.micro_batches(self.progress.position, self.lanes)

    def validation_batches(self, experiment: Experiment | None = None) -> Iterator[Batch]:
        """This rank's batches of the validation part, on the CPU or where ``data`` makes them.

        ``experiment``: another one than the engine's.
        """
        batches = (experiment or self.experiment).validation_batches(self.data, self.world.part, self.world.parts)
        return (cut(batch, self.world) for batch in batches)

    def seed_dropout(self, position: int, lane: int = 0) -> None:
        """Seed the random generators for micro-batch number ``position`` of a lane."""
        seed_generators(derive_seed(self.experiment.seed, DROPOUT, lane, position), self.device)

    def update(self) -> Update:
        """One optimizer step.

        When the loss or the gradient is not finite, neither weights nor progress change, except for an overflow in
        float16, where only the update is skipped.
        """
        began, progress, config = time.perf_counter(), self.progress, self.experiment.train
        batches = self._batches(progress.position)
        counts = self._counts_of(progress.position, batches)
        losses, terms = self._backward([move(batch, self.device) for batch in batches], counts)
        following = progress.position + config.accumulate
        if self.device.type != "cpu" or self.world.size > 1:  # load the next batch while the device computes
            self._prefetched = (following, self._batches(following))
        gradients = {self.optimizer.names[p]: p.grad for p in self.optimizer.parameters if p.grad is not None}
        parts, norm, interrupted, seconds = self._reduce(losses, gradients, began)
        loss, norm = sum(parts), norm / self.scaler.scale
        each = {name: part / (term.weight or 1.0) for (name, term), part in zip(terms.items(), parts, strict=True)}
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and (not math.isfinite(loss) or self.scaler.exhausted):
            return Update(loss, norm, 0.0, False, each)
        self.scaler.update(overflow=not finite)
        factor = config.factor(progress.step)
        if finite:
            self._clip(list(gradients.values()), norm)
            self.optimizer.step(factor)
        lr = self.optimizer.learning_rates(factor)[0]
        progress.step += 1
        progress.position = following
        progress.tokens += round(next(iter(counts.values())))
        return Update(loss, norm, lr, True, each, interrupted, seconds)

    def _backward(self, batches: Sequence[Batch], counts: dict[str, float]) -> tuple[list[Tensor], dict[str, Term]]:
        """Accumulate the gradients of all micro-batches; return their weighted losses by term, and the last terms."""
        if not self.model.training:
            self.model.train()
        self.optimizer.zero_grad()
        for mechanism in self._mechanisms:
            mechanism.advance(self.progress.step)
        if self.graphs:  # the outputs of the last step's graphs, the gradients among them, may be overwritten
            torch.compiler.cudagraph_mark_step_begin()
        losses, terms = [], {}
        self._details = []
        for number, ((position, lane), batch) in enumerate(zip(self.micro_batches(), batches, strict=True)):
            self.seed_dropout(position, lane)
            self._sync.micro_batch(number)
            with self.precision.autocast():
                terms = self.terms(self.model, batch)
                parts = shares(terms, counts, float(len(batches) * self.world.parts))
                loss = sum(parts[1:], start=parts[0])
            (loss * self.scaler.scale if self.scaler.active else loss).backward()
            losses.append(torch.stack([part.detach() for part in parts]))
            self._details += [term.details for term in terms.values() if term.details is not None]
        return losses, terms

    def details(self) -> JsonObject:
        """The layers' own metrics in the last update, as means over micro-batches and ranks. Every rank calls this."""
        if not self._details:
            return {}
        names = list(self._details[0])
        means = [torch.stack([each[name] for each in self._details]).double().mean(0).cpu() for name in names]
        *summed, ranks = self.world.sums([*torch.cat([mean.flatten() for mean in means]).tolist(), 1.0])
        total = torch.tensor(summed, dtype=torch.float64) / ranks
        parts = total.split([mean.numel() for mean in means])
        rounded = [
            torch.round(part.view(mean.shape), decimals=4).tolist() for part, mean in zip(parts, means, strict=True)
        ]
        return dict(zip(names, rounded, strict=True))

    def release(self) -> None:
        """Free the gradients and the prefetched batches."""
        self.optimizer.zero_grad()
        self._prefetched, self._counts, self._details = None, None, []

    def _batches(self, position: int) -> list[Batch]:
        if self._prefetched is not None and self._prefetched[0] == position:
            return self._prefetched[1]
        return [self.batch(*each) for each in self.experiment.micro_batches(position, self.lanes)]

    def _counts_of(self, position: int, batches: list[Batch]) -> dict[str, float]:
        """The number of targets of each term in an update, which came with the reduction of the one before."""
        if self._counts is not None and self._counts[0] == position:
            return self._counts[1]
        return targets_per_term(self.task, batches, self.world)

    def _reduce(
        self, losses: list[Tensor], gradients: Mapping[str, Tensor], began: float
    ) -> tuple[list[float], float, bool, tuple[float, ...]]:
        """The loss by term, the gradient norm, whether a signal was received, and the seconds of each rank.

        One synchronization of the device, and one reduction, in which the counts of the next update travel too.
        """
        norm = own_norm(gradients, self.model.cuts, self.world)
        *parts, length = torch.cat([*losses, norm.to(losses[0].dtype)[None]]).tolist()
        count = len(losses[0])
        own = [math.fsum(parts[term::count]) for term in range(count)]
        if self.world.size == 1:
            return own, length, bool(self.received), ()
        assert self._prefetched is not None
        position, batches = self._prefetched
        counts = own_targets(self.task, batches)
        seconds = [0.0] * self.world.size
        seconds[self.world.rank] = time.perf_counter() - began - self._waiting.take()
        summed = self.world.sums([*own, *counts.values()], [length * length, float(len(self.received)), *seconds])
        after = count + len(counts)
        square, received, *seconds = summed[after:]
        self._counts = (position, dict(zip(counts, summed[count:after], strict=True)))
        return summed[:count], math.sqrt(square), received > 0, tuple(seconds)

    def _clip(self, gradients: list[Tensor], norm: float) -> None:
        clip = self.experiment.train.clip
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        factor /= self.scaler.scale
        if factor != 1.0:
            torch._foreach_mul_(gradients, factor)


def compiles(asked: bool | str, model: Model, dynamic: bool, device: torch.device) -> bool:
    """Whether to compile the task's terms. An explicit choice that is impossible is an error."""
    if not model.compilable and asked in (True, "graphs"):
        raise UserError(f"a {type(model).__name__} cannot be compiled; set --train.compile to auto or false")
    if asked == "graphs" and dynamic:
        raise UserError("compile = graphs needs batches of one shape, and these differ; set --train.compile to auto")
    # With dynamic shapes, compiling takes longer than it saves.
    chosen = asked == "graphs" or (asked == "auto" and not dynamic)
    return model.compilable and (asked is True or (chosen and device.type == "cuda"))


def shares(terms: dict[str, Term], counts: dict[str, float], micro_batches: float) -> list[Tensor]:
    """The loss by term: each sum divided by the count of the whole update, so that micro-batches add up.

    An auxiliary loss has no count; it counts once per micro-batch.
    """
    return [term.total * (term.weight / max(counts.get(name, micro_batches), 1.0)) for name, term in terms.items()]


def targets_per_term(task: Task, batches: Sequence[Batch], world: World) -> dict[str, float]:
    """The number of targets of each term over all micro-batches and ranks."""
    own = own_targets(task, batches)
    return dict(zip(own, world.sums(list(own.values())), strict=True))


def own_targets(task: Task, batches: Sequence[Batch]) -> dict[str, float]:
    """The number of targets of each term over the micro-batches of this rank."""
    counted = [task.counts(batch) for batch in batches]
    return {name: float(sum(int(counts[name]) for counts in counted)) for name in counted[0]}
