"""From a checkpoint back to the engine: one function to restore each part of it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from regard.data import Data
from regard.errors import UserError
from regard.models import Model
from regard.parallel.pieces import Cut, Sliced, fill, whole_shape
from regard.parallel.tensors import weights
from regard.parallel.world import World
from regard.runs import Checkpoint
from regard.runs.checkpoint import Changed, changed
from regard.runs.disk import JsonObject
from regard.runs.shards import MODEL, OPTIMIZER
from regard.train.engine import Engine, TrainingProgress
from regard.train.optimizer import Optimizer


def check_data(data: Data, checkpoint: Checkpoint) -> None:
    """Refuse data other than those that the checkpoint was trained on."""
    if checkpoint.state.get("data") != data.sha256:
        raise UserError(
            "the data is not what this run was trained on (its SHA-256 differs); "
            "put the old file back, or start a new run"
        )


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Bring ``engine`` into exactly the state in which ``checkpoint`` was written."""
    check_data(engine.data, checkpoint)
    with checkpoint.opened(MODEL) as tensors:
        restore_model(engine.model, tensors)
    with checkpoint.opened(OPTIMIZER) as tensors:
        restore_optimizer(engine.optimizer, tensors, engine.model.cuts)
    try:
        engine.scaler.load(checkpoint.state["scaler"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{checkpoint.path / 'state.json'} is damaged (its 'scaler' has no scale); restore it from a copy"
        ) from error
    restore_progress(engine.progress, checkpoint)


def restore_model(model: Model, tensors: Mapping[str, Sliced]) -> None:
    """The weights and buffers. Only this rank's pieces of them are read."""
    model.prepare_load(tensors)
    own = weights(model)
    if different := sorted(own.keys() ^ tensors.keys()):
        raise UserError(
            f"the checkpoint does not fit the model: {different[0]} is in only one of them; "
            "resume with the regard that wrote the run"
        )
    for name, tensor in own.items():
        cut = model.cuts.get(name)
        stored, needed = tuple(tensors[name].shape), whole_shape(tensor, cut)
        if stored != needed:
            raise UserError(
                f"the checkpoint does not fit the model: {name} has the shape {stored} in one and {needed} in the "
                "other; undo the change to config.toml, or start a new run"
            )
        fill(tensor, tensors[name], cut)


def restore_optimizer(
    optimizer: Optimizer, tensors: Mapping[str, Sliced], cuts: Mapping[str, Cut] = MappingProxyType({})
) -> None:
    """The optimizer's moments and step counts; ``cuts`` of its parameters, by name."""
    try:
        optimizer.load(tensors, cuts)
    except ValueError as problem:
        raise UserError(f"the checkpoint does not fit the optimizer: {problem}; start a new run") from problem


def restore_progress(progress: TrainingProgress, checkpoint: Checkpoint) -> None:
    """The counters; batches, dropout and the learning rate follow from ``step`` and ``position``."""
    progress.step = checkpoint.step
    progress.position, progress.tokens = int(checkpoint.number("position")), int(checkpoint.number("tokens"))
    progress.seconds = checkpoint.number("seconds")
    progress.spent = checkpoint.number("spent") if "spent" in checkpoint.state else progress.seconds  # of an older run


def changed_on(world: World) -> Changed:
    """How all ranks read the files of a checkpoint: each of them its part. Every rank has to call it."""

    def shared(path: Path, files: JsonObject) -> str | None:
        names = sorted(files)
        own = {name: files[name] for number, name in enumerate(names) if number % world.size == world.rank}
        try:
            found = changed(path, own)
        except OSError:  # the others must not wait
            found = next(iter(own))
        damaged = world.sums([], [float(name == found) for name in names])
        return next((name for name, count in zip(names, damaged, strict=True) if count), None)

    return changed if world.size == 1 else shared
