"""The content of a checkpoint, and one function to restore each part of it."""

import torch
from torch import Tensor

from regard.data import Data
from regard.errors import UserError
from regard.models import Model
from regard.parallel.tensors import gathered, placed, weights
from regard.runs import Checkpoint, Run
from regard.train.adapt import frozen_names
from regard.train.engine import Engine, TrainingProgress
from regard.train.optimizer import Optimizer

BASE = 0  # the step whose checkpoint has the frozen parameters
COUNTERS = ("position", "tokens", "seconds")  # of TrainingProgress, besides the step


def save(engine: Engine, run: Run) -> None:
    """Write a checkpoint of the current step. Every rank calls this; rank 0 writes.

    Frozen parameters are written once, at step 0; later checkpoints hold the others.
    """
    progress, frozen = engine.progress, frozen_names(engine.model)
    model = gathered(weights(engine.model))
    optimizer = gathered(engine.optimizer.state())
    counters = {key: vars(progress)[key] for key in COUNTERS}
    state = {**counters, "scaler": engine.scaler.state(), "data": engine.data.sha256}
    if frozen and progress.step:
        state["base"] = BASE
        model = {name: tensor for name, tensor in model.items() if name not in frozen}
    if engine.world.rank == 0:
        run.save(progress.step, model, optimizer, state, engine.experiment.train.keep, (BASE,) if frozen else ())
    engine.world.barrier()  # no rank continues before the checkpoint is written


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
    restore_model(engine.model, checkpoint.model())
    restore_optimizer(engine.optimizer, checkpoint.optimizer())
    try:
        engine.scaler.load(checkpoint.state["scaler"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{checkpoint.path / 'state.json'} is damaged (its 'scaler' has no scale); restore it from a copy"
        ) from error
    restore_progress(engine.progress, checkpoint)


@torch.no_grad()
def restore_model(model: Model, tensors: dict[str, Tensor]) -> None:
    """The weights and buffers."""
    model.prepare_load(tensors)
    own = weights(model)
    if different := sorted(own.keys() ^ tensors.keys()):
        raise UserError(
            f"the checkpoint does not fit the model: {different[0]} is in only one of them; "
            "resume with the regard that wrote the run"
        )
    for name, tensor in own.items():
        if tensors[name].shape != tensor.shape:
            raise UserError(
                f"the checkpoint does not fit the model: {name} has the shape {tuple(tensors[name].shape)} in one and "
                f"{tuple(tensor.shape)} in the other; undo the change to config.toml, or start a new run"
            )
        tensor.copy_(placed(tensors[name], tensor))


def restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """The optimizer's moments and step counts."""
    try:
        optimizer.load(tensors)
    except ValueError as problem:
        raise UserError(f"the checkpoint does not fit the optimizer: {problem}; start a new run") from problem


def restore_progress(progress: TrainingProgress, checkpoint: Checkpoint) -> None:
    """The counters; batches, dropout and the learning rate follow from ``step`` and ``position``."""
    progress.step = checkpoint.step
    progress.position, progress.tokens = int(checkpoint.number("position")), int(checkpoint.number("tokens"))
    progress.seconds = checkpoint.number("seconds")
