"""Find the module whose output was not finite first: repeat the forward pass with a hook on every module."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.train.device import move
from regard.train.engine import Engine, Update
from regard.train.shard import local


class Diverged(UserError):
    """A loss or gradient that is not finite. Nothing was updated, and the last checkpoint is unchanged."""

    def __init__(self, message: str, step: int, position: int, module: str | None):
        super().__init__(message)
        self.step, self.position, self.module = step, position, module


def diagnose(engine: Engine, update: Update) -> Diverged:
    """The error for an update that was not finite: its step, its micro-batch, and the first module at fault."""
    progress = engine.progress
    for position in range(progress.position, progress.position + engine.experiment.train.accumulate):
        engine.seed_dropout(position)
        module = first_nonfinite(engine, move(engine.batch(position), engine.device))
        if engine.world.any(module is not None):
            module = module or "another rank's model"
            problem = f"the loss became {update.loss}, first in the output of {module}"
            return _error(problem, progress.step + 1, position, module)
    bad = [name for p, name in engine.optimizer.names.items() if p.grad is not None and _nonfinite(p.grad)]
    problem = f"the gradient's norm became {update.norm}" + (f", first in {bad[0]}" if bad else "")
    return _error(problem, progress.step + 1, progress.position, None)


def first_nonfinite(engine: Engine, batch: Any) -> str | None:
    """The first module, in order of execution and innermost first, whose output is not finite; None if all are."""
    found: list[str] = []

    def check_output(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and any(_nonfinite(tensor) for tensor in _tensors(output)):
                found.append(name)

        return hook

    with ExitStack() as stack:
        for name, module in engine.model.named_modules():
            stack.callback(module.register_forward_hook(check_output(name or "the model")).remove)
        with torch.no_grad(), engine.precision.autocast():
            terms = engine.task.terms(engine.model, batch)
    found += [f"the loss term {name}" for name, term in terms.items() if _nonfinite(term.total)]
    return found[0] if found else None


def _error(problem: str, step: int, position: int, module: str | None) -> Diverged:
    message = (
        f"at step {step}, data position {position}, {problem}; nothing was updated: lower the learning rate "
        "(--train.optimizer.lr), clip the gradient (--train.clip) or use --train.precision float32"
    )
    return Diverged(message, step, position, module)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _nonfinite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(local(tensor)).all())
