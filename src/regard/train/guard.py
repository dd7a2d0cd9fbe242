"""Checks before a run starts, and errors of the machine while it runs, each as a UserError that names the fix."""

from collections.abc import Callable
from typing import Any, TypeVar

from regard.attention import BackendRefused
from regard.data import Data
from regard.errors import UserError
from regard.train.device import pick_device
from regard.train.engine import Engine
from regard.train.experiment import Experiment
from regard.train.memory import check_model, exhausted, model_too_large, too_large
from regard.train.precision import Precision
from regard.train.shard import World, from_environment

T = TypeVar("T")


def check_start(experiment: Experiment) -> None:
    """Refuse a device or number format that is not available, and a model larger than the memory."""
    world = from_environment()
    device = pick_device(experiment.train.device, world.local)
    Precision(experiment.train.precision, device)
    if experiment.train.compile is True and device.type == "mps":
        raise UserError("nothing can be compiled for mps; leave out --train.compile, or use --train.device cpu")
    check_model(experiment, device, world)


def make_engine(experiment: Experiment, data: Data[Any], world: World) -> Engine:
    """An engine, or a UserError if the model does not fit into memory."""
    try:
        return Engine(experiment, data, world)
    except (RuntimeError, MemoryError, OSError) as error:
        if not exhausted(error):
            raise
    raise model_too_large(experiment, world.device)


def guarded(engine: Engine, work: Callable[[], T]) -> T:
    """``work()``; out of memory and a backend that refuses become a UserError that names the setting to change."""
    try:
        return work()
    except BackendRefused as refusal:
        raise UserError(f"{refusal.problem}; use --model.backend auto") from refusal
    except (RuntimeError, MemoryError, OSError) as error:
        if not exhausted(error):
            raise
    # Outside of the handler the error and the tensors of the failed pass are freed.
    raise too_large(engine)
