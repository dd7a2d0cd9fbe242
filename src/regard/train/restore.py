"""What a checkpoint carries, and its way back: one small function for each thing that must not be forgotten."""

from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Model
from regard.runs import Checkpoint, Run
from regard.train.engine import Engine, Progress
from regard.train.optimizer import Optimizer
from regard.train.precision import Scaler
from regard.train.shard import gathered, placed, weights


def save(engine: Engine, run: Run) -> None:
    """Write the checkpoint of the present step. Every rank calls this; rank 0 writes."""
    progress = engine.progress
    model = gathered(weights(engine.model))
    optimizer = gathered(engine.optimizer.state())
    state = {
        "schedule": progress.schedule,
        "position": progress.position,
        "noise": progress.noise,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "scaler": engine.scaler.state(),
        "data": _fingerprint(engine),
    }
    if engine.world.rank == 0:
        run.save(progress.step, model, optimizer, state, keep=engine.experiment.train.keep)
    engine.world.wait()  # nobody runs ahead of a checkpoint that is not yet there


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Bring `engine` to where it was when `checkpoint` was written, exactly."""
    state = checkpoint.state
    if state.get("data") != _fingerprint(engine):
        raise UserError(
            "the data is not what this run was trained on (its SHA-256 differs); "
            "put the old file back, or start a new run"
        )
    restore_model(engine.model, checkpoint.model())
    restore_optimizer(engine.optimizer, checkpoint.optimizer())
    restore_scaler(engine.scaler, state)
    restore_schedule(engine.progress, state)
    restore_data(engine.progress, state)
    restore_noise(engine.progress, state)
    engine.progress.step = checkpoint.step
    engine.progress.tokens = state["tokens"]
    engine.progress.seconds = state["seconds"]


@torch.no_grad()
def restore_model(model: Model, tensors: dict[str, Tensor]) -> None:
    """The weights, and what the model carries from batch to batch."""
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
    """The optimizer's momenta and counts."""
    try:
        optimizer.load(tensors)
    except ValueError as problem:
        raise UserError(f"the checkpoint does not fit the optimizer: {problem}; start a new run") from problem


def restore_scaler(scaler: Scaler, state: dict[str, Any]) -> None:
    """The loss scale of float16."""
    scaler.load(state["scaler"])


def restore_schedule(progress: Progress, state: dict[str, Any]) -> None:
    """The step that the learning-rate schedule sees."""
    progress.schedule = state["schedule"]


def restore_data(progress: Progress, state: dict[str, Any]) -> None:
    """The place in the stream of micro-batches."""
    progress.position = state["position"]


def restore_noise(progress: Progress, state: dict[str, Any]) -> None:
    """The place in the stream of dropout."""
    progress.noise = state["noise"]


def _fingerprint(engine: Engine) -> str | None:
    return engine.data.sha256
