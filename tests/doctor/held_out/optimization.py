"""Faults of the optimizer, the schedule and clipping."""

from __future__ import annotations

import torch

from held_out.parts import OPTIMIZERS, HeldOut, SGDConfig, changed_optimizer, gpt, trained_with
from regard.train import AdamWConfig, ConstantScheduleConfig
from regard.train.optimizer import Optimizer


class NeverZeroed(Optimizer):
    """Gradients add up over all steps."""

    def zero_grad(self) -> None:
        pass


class Permutes(Optimizer):
    """After step 90, the rows of the embedding are in another order."""

    done = 0

    def step(self, factor: float) -> None:
        super().step(factor)
        self.done += 1
        embedding = next(p for p, name in self.names.items() if name == "embed.weight")
        if self.done == 90:
            order = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1))
            with torch.no_grad():
                embedding.copy_(embedding[order])


class WritesAverage(Optimizer):
    """The moving average of the weights replaces them: every update is 200 times too small."""

    def step(self, factor: float) -> None:
        before = [p.detach().clone() for p in self.parameters]
        super().step(factor)
        with torch.no_grad():
            for parameter, old in zip(self.parameters, before, strict=True):
                parameter.copy_(0.995 * old + 0.005 * parameter)


class Underflows(Optimizer):
    """Gradients pass through float16 after a division by 65,536: most become zero."""

    def step(self, factor: float) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = (parameter.grad * 2.0**-16).half().float() * 2.0**16
        super().step(factor)


OPTIMIZERS |= {
    "never zeroed": NeverZeroed,
    "permutes": Permutes,
    "average": WritesAverage,
    "underflows": Underflows,
}
FAULTS = {
    "gradients not zeroed": HeldOut("step_differs", "the gradient", changed_optimizer("never zeroed")),
    "optimizer misses a block": HeldOut(
        "unoptimized_parameters", r"blocks\.1", changed_optimizer("misses", gpt(zero_init=False))
    ),
    "rate 100 times too low": HeldOut(
        "rate_too_low", r"train\.optimizer\.lr", trained_with(optimizer=AdamWConfig(3e-5))
    ),
    "warm-up never ends": HeldOut(
        "rate_too_low", r"train\.schedule\.warmup", trained_with(schedule=ConstantScheduleConfig(warmup=20000))
    ),
    "huge weight decay": HeldOut(
        "setting_dominates",
        r"train\.optimizer\.weight_decay",
        trained_with(optimizer=AdamWConfig(3e-3, weight_decay=100.0)),
    ),
    "clipped to nothing": HeldOut(
        "setting_dominates", r"train\.clip", trained_with(optimizer=SGDConfig(lr=0.1), clip=0.001)
    ),
    "rows permuted": HeldOut("foreign_writes", r"embed\.weight", changed_optimizer("permutes")),
    "average written back": HeldOut("foreign_writes", r"train\.optimizer", changed_optimizer("average")),
    "underflow in 16 bits": HeldOut("step_differs", "the gradient", changed_optimizer("underflows", clip=None)),
}
