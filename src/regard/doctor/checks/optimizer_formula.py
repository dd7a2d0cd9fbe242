"""An optimizer with other settings than the config's, or whose step is not its formula.

A replay has an optimizer of the same class, so it cannot see a fault in the class or in how it is built.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor import Check, Findings, TrainingRun
from regard.doctor.schedule import sampled
from regard.parallel.tensors import local
from regard.train import TrainingStep

NAMES = ("betas", "eps", "momentum")  # settings that every group has as the config gives them
FEW, NUMBERS = 4, 2**16  # parameters whose update is computed a second time, and rows of each with so many numbers
APART = 1e-2  # between two updates, relative to them


class Before(NamedTuple):
    """Some rows of a parameter before a step of AdamW."""

    group: dict[str, Any]
    weight: Tensor
    gradient: Tensor
    moments: tuple[Tensor, Tensor]
    step: int


class OptimizerDiffers(Check):
    kind, description = "optimizer_differs", "the optimizer is not the configured one"
    rank = 0
    follows = ("unoptimized_parameters", "wrong_precision")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._step, self._found = 0, False
        self._wrong: list[tuple[float, float]] = []  # of the last measured step: length of the update and of the error

    def on_start(self) -> Findings:
        optimizer = self.run.optimizer
        if optimizer is None:
            return
        yield from self._settings(optimizer.groups)
        for part in optimizer.parts:
            if isinstance(part, torch.optim.AdamW) and self.run.device.type == "cpu":
                before: dict[Tensor, Before] = {}
                part.register_step_pre_hook(lambda p, *_, b=before: self._note(p, b))
                part.register_step_post_hook(lambda p, *_, b=before: self._compare(b))

    def _settings(self, groups: list[dict[str, Any]]) -> Findings:
        """The settings of each group of parameters against the config."""
        config = self.run.settings["train"]["optimizer"]
        decays = [float(value) for key, value in config.items() if key.endswith("weight_decay")]
        for group in groups:
            for name in NAMES:
                wanted = [value for key, value in config.items() if key in (name, f"rest_{name}")]
                if name in group and wanted and not any(equal(group[name], one) for one in wanted):
                    which = f"train.optimizer.{name}"
                    evidence = f"{name} is {group[name]} in the optimizer, and {wanted[0]} in the config"
                    cause = "the optimizer is built with other settings: exchanged, left at defaults, or set afterwards"
                    yield self.finding(which, evidence, cause, f"pass the config's {name} to the optimizer")
            sizes = {p.ndim >= 2 for p in group["params"]}
            decay = float(group.get("weight_decay", 0.0))
            if not decays or not sizes:
                continue
            if sizes == {False} and decay > 0:
                evidence = f"{len(group['params'])} norms and biases have weight decay {decay:g}"
                cause = "weight decay acts on parameters that are no matrices: gains are pulled to zero"
                yield self.finding("train.optimizer.weight_decay", evidence, cause, "give them a group without decay")
            elif True in sizes and not any(equal(decay, one) for one in decays):
                evidence = f"the decay of {len(group['params'])} tensors is {decay:g}, and {decays[0]:g} in the config"
                cause = "the optimizer is built with another weight decay"
                yield self.finding("train.optimizer.weight_decay", evidence, cause, "pass the config's weight decay")

    def _note(self, part: torch.optim.Optimizer, before: dict[Tensor, Before]) -> None:
        before.clear()
        if not sampled(self._step + 1) or self._found:
            return
        chosen = [(group, p) for group in part.param_groups for p in group["params"] if p.grad is not None][::-1][:FEW]
        for group, p in chosen:
            own = local(p.detach())  # AdamW treats each element by itself, so a shard of it will do
            if not p.ndim or not own.numel() or group.get("amsgrad"):
                continue
            state, rows = part.state.get(p, {}), max(1, NUMBERS // own[0].numel())
            zero = torch.zeros_like(own[:rows])
            mean, square = (local(state[n])[:rows].clone() if n in state else zero for n in ("exp_avg", "exp_avg_sq"))
            assert p.grad is not None
            count = int(state["step"]) if "step" in state else 0
            before[p] = Before(dict(group), own[:rows].clone(), local(p.grad)[:rows].clone(), (mean, square), count)

    @torch.no_grad()
    def _compare(self, before: dict[Tensor, Before]) -> None:
        for p, one in before.items():
            want, got = adamw(one), local(p.detach())[: len(one.weight)] - one.weight
            rounding = torch.finfo(p.dtype).eps * float(one.weight.norm())  # of the sum of a weight and its update
            self._wrong.append((float(want.norm()), max(0.0, float((got - want).norm()) - rounding)))

    def on_step(self, step: TrainingStep) -> Findings:
        self._step, wrong, self._wrong = step.step, self._wrong, []
        size, error = (math.hypot(*parts) for parts in zip(*wrong, strict=True)) if wrong else (0.0, 0.0)
        if error > APART * max(size, 1e-12) and not self._found and math.isfinite(error):
            self._found = True
            evidence = f"update {step.step} of {len(wrong)} tensors differs from AdamW's formula by {error / size:.2g}"
            cause = "moments, bias correction, epsilon or weight decay are not those of Loshchilov and Hutter (2019)"
            change = "compare its step with torch.optim.AdamW on one tensor"
            yield self.finding("train.optimizer", evidence, cause, change)


def adamw(one: Before) -> Tensor:
    """The update of AdamW (Loshchilov and Hutter 2019, algorithm 2) in float64."""
    group, step = one.group, one.step + 1
    first, second = group["betas"]
    gradient = one.gradient.double() * (-1 if group.get("maximize") else 1)
    weight = one.weight.double()
    mean = first * one.moments[0].double() + (1 - first) * gradient
    square = second * one.moments[1].double() + (1 - second) * gradient.square()
    moved = mean / (1 - first**step) / ((square / (1 - second**step)).sqrt() + group["eps"])
    return -float(group["lr"]) * (moved + group["weight_decay"] * weight)


def equal(one: Any, other: Any) -> bool:
    """Whether two numbers or tuples of numbers are equal."""
    one, other = ([float(x) for x in (value if isinstance(value, list | tuple) else [value])] for value in (one, other))
    return len(one) == len(other) and all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(one, other, strict=True))
