"""Weights that something else than the optimizer writes to.

Every in-place operation on a tensor counts up its version (torch.Tensor._version), and the versions are read right
after each part of the optimizer has made its step. They must be the same when the next step begins. Norms, which show
writes through `.data` too, are compared now and then.
"""

from typing import Any

import torch
from torch import Tensor

from regard.doctor import Check, Findings, TrainingRun
from regard.doctor.schedule import sampled
from regard.train import TrainingStep

NAMED = 3  # parameters that a finding names


class ForeignWrites(Check):
    kind, description = "foreign_writes", "something else than the optimizer writes to the weights"
    rank = 0
    follows = ("wrong_precision",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._parameters: dict[torch.optim.Optimizer, list[Tensor]] = {}  # of the parts of the optimizer
        self._versions: dict[torch.optim.Optimizer, list[int]] = {}  # after the last step of the optimizer
        self._norms: dict[torch.optim.Optimizer, list[Tensor]] = {}
        self._written: list[Tensor] = []
        self._step = 0

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.optimizer is not None:
            for part in self.run.optimizer.parts:
                self._parameters[part] = [p for group in part.param_groups for p in group["params"]]
                part.register_step_pre_hook(self._before)
                part.register_step_post_hook(self._after)
        return ()

    def _after(self, part: torch.optim.Optimizer, *_: Any) -> None:
        self._versions[part] = [p._version for p in self._parameters[part]]
        if sampled(self._step + 1):
            with torch.no_grad():
                self._norms[part] = list(torch._foreach_norm(self._parameters[part]))

    def _before(self, part: torch.optim.Optimizer, *_: Any) -> None:
        parameters, versions = self._parameters[part], self._versions.get(part)
        if versions is not None and versions != [p._version for p in parameters]:
            self._written += [p for p, before in zip(parameters, versions, strict=True) if p._version != before]
        if (norms := self._norms.pop(part, None)) is not None:
            with torch.no_grad():
                now = torch._foreach_norm(parameters)
            self._written += [p for p, one, other in zip(parameters, now, norms, strict=True) if not one.equal(other)]

    def on_step(self, step: TrainingStep) -> Findings:
        self._step = step.step
        written, self._written = dict.fromkeys(self._written), []
        optimizer = self.run.optimizer
        if not written or optimizer is None:
            return
        names = [optimizer.names.get(p, "a parameter") for p in written]
        count = sum(map(len, self._parameters.values()))
        some = f"{', '.join(names[:NAMED])} ({len(names)} of {count})"
        evidence = f"before step {step.step} {some} changed between two steps of the optimizer"
        cause = (
            "a write to the weights that is not the optimizer's: an average or a mask put back, another order of rows"
        )
        change = "write only to copies of the weights during training"
        yield self.finding("train.optimizer" if len(names) > count / 2 else names[0], evidence, cause, change)
