"""Where a number first went wrong: the forward pass again, with an eye on every module's output."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.train.device import move
from regard.train.engine import Engine, Update


class Diverged(UserError):
    """A loss or gradient that is not finite. Nothing was updated, and the last checkpoint is as it was."""

    def __init__(self, message: str, step: int, position: int, module: str | None):
        super().__init__(message)
        self.step, self.position, self.module = step, position, module


def diagnose(engine: Engine, update: Update) -> Diverged:
    """The error for an update that was not finite: its step, the micro-batch, and the first module to blame."""
    progress = engine.progress
    accumulate = engine.experiment.train.accumulate
    step = progress.step + 1
    for number in range(accumulate):
        position = progress.position + number
        engine.seed_noise(progress.noise + number)
        module = first_nonfinite(engine, move(engine.batch(position), engine.device))
        if engine.world.any(module is not None):
            module = module or "another rank's model"
            what = f"the loss became {update.loss}, first in the output of {module}"
            return _error(engine, what, step, position, module)
    bad = [name for p, name in engine.optimizer.names.items() if p.grad is not None and _nonfinite(p.grad)]
    what = f"the gradient's norm became {update.norm}" + (f", first in {bad[0]}" if bad else "")
    return _error(engine, what, step, progress.position, None)


def first_nonfinite(engine: Engine, batch: Any) -> str | None:
    """The first module, in order of execution and innermost first, whose output is not finite; None if none is."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and any(_nonfinite(tensor) for tensor in _tensors(output)):
                found.append(name)

        return look

    with ExitStack() as stack:
        for name, module in engine.model.named_modules():
            stack.callback(module.register_forward_hook(watch(name or "the model")).remove)
        with torch.no_grad(), engine.precision.autocast():
            terms = engine.task.terms(engine.model, batch)
    for name, term in terms.items():
        if not found and _nonfinite(term.total):
            found.append(f"the loss term {name}")
    return found[0] if found else None


def _error(engine: Engine, what: str, step: int, position: int, module: str | None) -> Diverged:
    message = (
        f"at step {step}, data position {position}, {what}; nothing was updated: lower the learning rate "
        "(--train.optimizer.lr), clip the gradient (--train.clip) or use --train.precision float32"
    )
    return Diverged(message, step, position, module)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _nonfinite(tensor: Any) -> bool:
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
