"""Weights that something else than the optimizer writes to.

Every in-place operation on a tensor counts up its version (torch.Tensor._version), and the versions are read right
after each part of the optimizer has made its step. They must be the same when the next step begins.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor import Check, Findings, TrainingRun
from regard.train import TrainingStep

NAMED = 3  # parameters that a finding names
#: Steps between two comparisons of norms, which see writes through `.data` too: at first, and later.
OFTEN, EARLY, EVERY = 10, 60, 50


class ForeignWrites(Check):
    kind, description = "foreign_writes", "something else than the optimizer writes to the weights"
    rank = 0
    follows = ("wrong_precision",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._parameters: dict[torch.optim.Optimizer, list[nn.Parameter]] = {}  # of the parts of the optimizer
        self._versions: dict[torch.optim.Optimizer, list[int]] = {}  # after the last step of the optimizer
        self._norms: dict[torch.optim.Optimizer, list[Tensor]] = {}
        self._written: dict[nn.Parameter, str] = {}
        self._steps = 0

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.optimizer is not None:
            for part in self.run.optimizer.parts:
                self._parameters[part] = [p for group in part.param_groups for p in group["params"]]
                part.register_step_pre_hook(self._before)
                part.register_step_post_hook(self._after)
        return ()

    def _before(self, part: torch.optim.Optimizer, *_: Any) -> None:
        self._compare(part, "before a step")

    @torch.no_grad()
    def _after(self, part: torch.optim.Optimizer, *_: Any) -> None:
        self._versions[part] = [p._version for p in self._parameters[part]]
        if self._steps % (OFTEN if self._steps < EARLY else EVERY) == 0:
            self._norms[part] = list(torch._foreach_norm(self._parameters[part]))

    @torch.no_grad()
    def _compare(self, part: torch.optim.Optimizer, when: str) -> None:
        parameters, norms = self._parameters[part], self._norms.pop(part, None)
        versions = [p._version for p in parameters]
        known = self._versions.get(part, versions)
        if versions != known:
            changed = (p for p, version, before in zip(parameters, versions, known, strict=True) if version != before)
            self._written |= dict.fromkeys(changed, when)
            self._versions[part] = versions
        if norms is not None:
            now = torch._foreach_norm(parameters)
            changed = (p for p, norm, before in zip(parameters, now, norms, strict=True) if not norm.equal(before))
            self._written |= dict.fromkeys(changed, when)

    def on_step(self, step: TrainingStep) -> Findings:
        for part in self._versions:
            self._compare(part, "after the optimizer's step")
        self._steps += 1
        written, self._written = self._written, {}
        optimizer = self.run.optimizer
        if not written or optimizer is None:
            return
        names = [optimizer.names.get(p, "a parameter") for p in written]
        count = sum(map(len, self._parameters.values()))
        some = f"{', '.join(names[:NAMED])} ({len(names)} of {count})"
        evidence = f"at step {step.step} {some} changed {next(iter(written.values()))}"
        cause = (
            "a write to the weights that is not the optimizer's: an average or a mask put back, another order of rows"
        )
        change = "write only to copies of the weights during training"
        yield self.finding("train.optimizer" if len(names) > count / 2 else names[0], evidence, cause, change)
