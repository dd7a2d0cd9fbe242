"""What can be known before a run exists, and what can go wrong while it works: each a sentence with its fix."""

from collections.abc import Callable
from typing import Any, TypeVar

from regard.attention import BackendRefused
from regard.errors import UserError
from regard.train.device import pick_device
from regard.train.engine import Engine
from regard.train.experiment import Experiment
from regard.train.memory import check_model, exhausted, model_too_large, too_large
from regard.train.precision import Precision
from regard.train.shard import World, from_environment

T = TypeVar("T")


def check_start(experiment: Experiment) -> None:
    """Refuse what cannot run here: a device or number format that is not there, a model larger than all memory."""
    world = from_environment()
    device = pick_device(experiment.train.device, world.local)
    Precision(experiment.train.precision, device)
    if experiment.train.compile is True and device.type == "mps":
        raise UserError("nothing can be compiled for mps; leave out --train.compile, or use --train.device cpu")
    check_model(experiment, device, world)


def make_engine(experiment: Experiment, data: Any, world: World) -> Engine:
    """An engine, or a sentence where memory does not hold it."""
    try:
        return Engine(experiment, data, world)
    except (RuntimeError, MemoryError, OSError) as error:
        if not exhausted(error):
            raise
    raise model_too_large(experiment, world.device)


def guarded(engine: Engine, work: Callable[[], T]) -> T:
    """`work()`, some of the engine's; out of memory, or a backend that refuses, is the person's to mend."""
    try:
        return work()
    except BackendRefused as refusal:
        why = str(refusal).removesuffix(" Use backend='auto'.").rstrip(".")
        raise UserError(f"{why}; use --model.backend auto") from refusal
    except (RuntimeError, MemoryError, OSError) as error:
        if not exhausted(error):
            raise
    # Out here the error is gone, and with it the tensors of the pass that failed.
    raise too_large(engine)
