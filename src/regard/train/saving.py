"""When and how a run is saved: at once, or from a thread while training goes on."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain

import torch
from torch import Tensor, nn

from regard.parallel.exchange import exchange_of
from regard.parallel.pieces import Cut
from regard.parallel.tensors import weights
from regard.runs import Run
from regard.runs.shards import MODEL, OPTIMIZER, ShardMap
from regard.train.adapt import frozen_names
from regard.train.engine import Engine
from regard.train.shards import Kinds, Lists, assign, listed, own_pieces, write_shards

BASE = 0  # the step whose checkpoint has the frozen parameters
COUNTERS = ("position", "tokens", "seconds", "spent")  # of TrainingProgress, besides the step


class Saver:
    """Writes checkpoints of an engine. Every rank has one, and calls the same methods at the same steps.

    With ``train.save_async`` the tensors are copied to the memory of the machine, and a thread writes them; at most one
    checkpoint is being written. A context that waits for it.
    """

    def __init__(self, engine: Engine, run: Run):
        self.engine, self.run = engine, run
        self._exchange = exchange_of(engine.world)
        self._plan: tuple[Lists, ShardMap] | None = None  # which rank writes what, and for which tensors
        self._thread: threading.Thread | None = None
        self._writing: int | None = None  # the step whose checkpoint the thread writes
        self._error: Exception | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(*([Exception] if error is not None else [])):  # the first error ends the run
            self.wait()

    def save(self) -> list[int]:
        """Write a checkpoint of the current step, or begin to. Returns the steps whose checkpoints are now written.

        Frozen parameters are written once, at step 0; later checkpoints hold the others.
        """
        written, step = self.wait(), self.engine.progress.step
        write = self._prepared()
        if not self.engine.experiment.train.save_async:
            write()
            return [*written, step]
        self._thread = threading.Thread(target=self._attempt, args=(write,), name="save", daemon=True)
        self._writing = step
        self._thread.start()
        return written

    def wait(self) -> list[int]:
        """Wait for the checkpoint that is being written, and raise the error of its thread."""
        if self._thread is None:
            return []
        self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
        return [self._writing] if self._writing is not None else []

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:
            self._error = error

    def _prepared(self) -> Callable[[], object]:
        """What remains to be done for a checkpoint of this moment: none of it is about the engine."""
        engine, run = self.engine, self.run
        progress, frozen, keep = engine.progress, frozen_names(engine.model), engine.experiment.train.keep
        model = weights(engine.model)
        state: dict[str, object] = {key: vars(progress)[key] for key in COUNTERS}
        state |= {"scaler": engine.scaler.state(), "data": engine.data.sha256}
        if frozen and progress.step:
            state["base"] = BASE
            model = {name: tensor for name, tensor in model.items() if name not in frozen}
        tensors = {MODEL: model, OPTIMIZER: engine.optimizer.state()}
        step, pinned = progress.step, (BASE,) if frozen else ()
        if engine.world.size == 1:
            own = self._copied(tensors)
            return lambda: run.save(step, own[MODEL], own[OPTIMIZER], state, keep, pinned)
        rank, cuts = engine.world.rank, {MODEL: engine.model.cuts, OPTIMIZER: moment_cuts(engine)}
        shared = tied_names(engine.model, model)
        tensors[MODEL] = {name: tensor for name, tensor in model.items() if name not in shared}
        split = self._split(listed(tensors, cuts), {MODEL: shared, OPTIMIZER: {}})
        own = own_pieces(split, rank, tensors, cuts)
        own = own._replace(pieces=self._copied(own.pieces))
        return lambda: write_shards(run, step, own, self._exchange, state, keep, pinned)

    def _split(self, own: Lists, shared: Mapping[str, Mapping[str, str]]) -> ShardMap:
        """Which rank writes what; that of the last checkpoint, if every rank has the same tensors as then."""
        if any(self._exchange(self._plan is None or self._plan[0] != own)):
            self._plan = own, assign(self._exchange(own), shared)
        assert self._plan is not None
        return self._plan[1]

    def _copied(self, tensors: Kinds) -> dict[str, dict[str, Tensor]]:
        """Copies on the CPU if a thread will write them, else the tensors themselves."""
        if not self.engine.experiment.train.save_async:
            return {kind: dict(named) for kind, named in tensors.items()}
        copies = {kind: host_copies(named) for kind, named in tensors.items()}
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        return copies


def save(engine: Engine, run: Run) -> None:
    """Write a checkpoint of the current step. Every rank calls this."""
    with Saver(engine, run) as saver:
        saver.save()


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, in pinned memory if they come from CUDA, where they still have to arrive; ties are kept."""
    copies: dict[tuple, Tensor] = {}
    found = {}
    for name, given in tensors.items():
        tensor, cuda = given.detach(), given.is_cuda
        view = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if view not in copies or not tensor.numel():
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=cuda)
            copies[view] = copy.copy_(tensor, non_blocking=cuda)
        found[name] = copies[view]
    return found


def tied_names(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """From each further name of a tensor of the model's ``state`` to its first one."""
    first: dict[int, str] = {}
    shared = {}
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        if name in state and first.setdefault(id(tensor), name) != name:
            shared[name] = first[id(tensor)]
    return shared


def moment_cuts(engine: Engine) -> dict[str, Cut]:
    """How the tensors of the optimizer's state are cut: as their parameters are."""
    cuts, shapes = engine.model.cuts, {name: parameter.shape for parameter, name in engine.optimizer.names.items()}
    owners = {key: (key.rpartition("/")[0], tensor) for key, tensor in engine.optimizer.state().items()}
    return {key: cuts[name] for key, (name, tensor) in owners.items() if name in cuts and tensor.shape == shapes[name]}
