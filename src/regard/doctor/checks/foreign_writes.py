"""Weights that something else than the optimizer writes to.

Every in-place operation on a tensor counts up its version (torch.Tensor._version), and the versions are read right
after each part of the optimizer has made its step. They must be the same when the next step begins.
"""

from typing import Any

import torch
from torch import nn

from regard.doctor import Check, Findings, TrainingRun
from regard.train import TrainingStep

NAMED = 3  # parameters that a finding names
EVERY = 10  # steps between two comparisons of norms, which see writes through `.data` too


class ForeignWrites(Check):
    kind, description = "foreign_writes", "something else than the optimizer writes to the weights"
    rank = 0
    follows = ("wrong_precision",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._versions: dict[nn.Parameter, int] = {}  # after the last step of the optimizer
        self._norms: dict[nn.Parameter, torch.Tensor] = {}
        self._written: dict[nn.Parameter, str] = {}
        self._steps = 0

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.optimizer is not None:
            for part in self.run.optimizer.parts:
                part.register_step_pre_hook(self._before)
                part.register_step_post_hook(self._after)
        return ()

    def _before(self, part: torch.optim.Optimizer, *_: Any) -> None:
        self._compare([p for group in part.param_groups for p in group["params"]], "before a step")

    @torch.no_grad()
    def _after(self, part: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in part.param_groups for p in group["params"]]
        self._versions |= {p: p._version for p in parameters}
        if self._steps % EVERY == 0:
            self._norms |= dict(zip(parameters, torch._foreach_norm(parameters), strict=True))

    @torch.no_grad()
    def _compare(self, parameters: list[nn.Parameter], when: str) -> None:
        for p in parameters:
            if p._version != self._versions.get(p, p._version):
                self._written[p] = when
            norm = self._norms.pop(p, None)
            if norm is not None and not torch.equal(norm, p.norm()):
                self._written[p] = when

    def on_step(self, step: TrainingStep) -> Findings:
        self._compare(list(self._versions), "after the optimizer's step")
        self._versions = {p: p._version for p in self._versions}
        self._steps += 1
        written, self._written = self._written, {}
        optimizer = self.run.optimizer
        if not written or optimizer is None:
            return
        names = [optimizer.names.get(p, "a parameter") for p in written]
        many = len(names) > len(self._versions) / 2
        some = f"{', '.join(names[:NAMED])} ({len(names)} of {len(self._versions)})"
        evidence = f"at step {step.step} {some} changed {next(iter(written.values()))}"
        cause = (
            "a write to the weights that is not the optimizer's: an average or a mask put back, another order of rows"
        )
        change = "write only to copies of the weights during training"
        yield self.finding("train.optimizer" if many else names[0], evidence, cause, change)
