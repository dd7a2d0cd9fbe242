"""Find the module whose output was not finite first: repeat the forward pass with a hook on every module."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.data import Batch
from regard.errors import UserError
from regard.parallel.tensors import local
from regard.train.device import move
from regard.train.engine import Engine, Update


class Diverged(UserError):
    """A loss or gradient that is not finite. Nothing was updated, and the last checkpoint is unchanged."""

    def __init__(self, problem: str, step: int, position: int, module: str | None = None):
        super().__init__(
            f"at step {step}, data position {position}, {problem}; nothing was updated: lower the learning rate "
            "(--train.optimizer.lr), clip the gradient (--train.clip) or use --train.precision float32"
        )
        self.step, self.position, self.module = step, position, module


def diagnose(engine: Engine, update: Update) -> Diverged:
    """The error for an update that was not finite: its step, its micro-batch, and the first module at fault."""
    step, first = engine.progress.step + 1, engine.progress.position
    for position, lane in engine.micro_batches():
        engine.seed_dropout(position, lane)
        module = first_nonfinite(engine, move(engine.batch(position, lane), engine.device))
        if engine.world.any(module is not None):
            module = module or "another rank's model"
            problem = f"the loss became {update.loss}, first in the output of {module}"
            return Diverged(problem, step, position, module)
    bad = [name for p, name in engine.optimizer.names.items() if p.grad is not None and _nonfinite(p.grad)]
    problem = f"the gradient's norm became {update.norm}" + (f", first in {bad[0]}" if bad else "")
    return Diverged(problem, step, first)


def first_nonfinite(engine: Engine, batch: Batch) -> str | None:
    """The first module, in order of execution and innermost first, whose output is not finite; None if all are."""
    found: list[str] = []

    def check_output(name: str) -> Callable[[object, object, object], None]:
        def hook(module: object, inputs: object, output: object) -> None:
            if not found and any(_nonfinite(value) for value in tree_leaves(output)):
                found.append(name)

        return hook

    with ExitStack() as stack:
        for name, module in engine.model.named_modules():
            stack.callback(module.register_forward_hook(check_output(name or "the model")).remove)
        with torch.no_grad(), engine.precision.autocast():
            terms = engine.task.terms(engine.model, batch)
    found += [f"the loss term {name}" for name, term in terms.items() if _nonfinite(term.total)]
    return found[0] if found else None


def _nonfinite(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return not bool(torch.isfinite(local(value)).all())
