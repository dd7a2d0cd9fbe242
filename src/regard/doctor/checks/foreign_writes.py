"""Weights and optimizer state that something else than the optimizer writes to, and optimizers that step twice.

Every in-place operation on a tensor counts up its version (torch.Tensor._version), and the versions are read right
after each part of the optimizer has made its step. They must be the same when the next step begins. Norms, which show
writes through `.data` too, are compared now and then.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties
from regard.doctor import Check, Findings, TrainingRun
from regard.doctor.schedule import sampled
from regard.train import TrainingStep

NAMED = 3  # parameters that a finding names
Part = torch.optim.Optimizer


class ForeignWrites(Check):
    kind, description = "foreign_writes", "something else than one step of the optimizer changes the weights"
    rank = 0
    follows = ("wrong_precision",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._parameters: dict[Part, list[Tensor]] = {}  # of the parts of the optimizer
        self._versions: dict[Part, list[tuple[int, ...]]] = {}  # after the last step of the optimizer
        self._norms: dict[Part, list[Tensor]] = {}
        self._written: list[Tensor] = []
        self._step, self._steps = 0, 0

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.optimizer is not None:
            modules = (m for m in self.run.model.modules() if isinstance(m, ModuleProperties) and m.self_updating)
            others = {p for module in modules if isinstance(module, nn.Module) for p in module.parameters()}
            for part in self.run.optimizer.parts:
                owned = [p for group in part.param_groups for p in group["params"]]
                self._parameters[part] = [p for p in owned if p not in others]
                part.register_step_pre_hook(self._before)
                part.register_step_post_hook(self._after)
        return ()

    def _now(self, part: Part) -> list[tuple[int, ...]]:
        """The versions of each parameter and of its state, whose tensors must also stay the same ones."""
        state = part.state
        return [
            (p._version, *(id(x) + x._version for x in state[p].values() if isinstance(x, Tensor)))
            if p in state
            else (p._version,)
            for p in self._parameters[part]
        ]

    def _after(self, part: Part, *_: Any) -> None:
        self._steps += 1
        self._versions[part] = self._now(part)
        if sampled(self._step + 1):
            with torch.no_grad():
                self._norms[part] = list(torch._foreach_norm(self._parameters[part]))

    def _before(self, part: Part, *_: Any) -> None:
        parameters, versions = self._parameters[part], self._versions.get(part)
        if versions is not None and versions != (now := self._now(part)):
            self._written += [p for p, one, other in zip(parameters, versions, now, strict=True) if one != other]
        if (norms := self._norms.pop(part, None)) is not None:
            with torch.no_grad():
                now_norms = torch._foreach_norm(parameters)
            pairs = zip(parameters, now_norms, norms, strict=True)
            self._written += [p for p, one, other in pairs if not one.equal(other)]

    def on_step(self, step: TrainingStep) -> Findings:
        self._step, steps, self._steps = step.step, self._steps, 0
        written, self._written = dict.fromkeys(self._written), []
        optimizer = self.run.optimizer
        if optimizer is None:
            return
        if steps > len(optimizer.parts):
            evidence = f"in update {step.step} the optimizer made {steps / len(optimizer.parts):.3g} steps"
            cause = "step is called more than once for one gradient: the rate is that many times too high"
            yield self.finding("train.optimizer", evidence, cause, "call step once in each update")
        elif written:
            names = [optimizer.names.get(p, "a parameter") for p in written]
            count = sum(map(len, self._parameters.values()))
            some = f"{', '.join(names[:NAMED])} ({len(names)} of {count})"
            evidence = f"before step {step.step} {some} or their moments changed between two steps of the optimizer"
            cause = "a write that is not the optimizer's: an average or a mask put back, another order of rows, a reset"
            change = "write only to copies of weights and optimizer state during training"
            yield self.finding("train.optimizer" if len(names) > count / 2 else names[0], evidence, cause, change)
