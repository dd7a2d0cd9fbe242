"""Losses, gradients or weights that are NaN or infinite."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.doctor import Check, Findings
from regard.doctor.context import Record
from regard.train import Diverged

OVERFLOW = "its result is beyond the number format: weights or inputs too large for what it computes"
CLIP, PRECISE = "--train.clip 1.0", "--train.precision float32"


class NonFinite(Check):
    kind, description = "non_finite", "a number is not finite"

    def on_failure(self, error: BaseException) -> Findings:
        if not isinstance(error, Diverged):
            return
        named = {} if self.run.model is None else dict(self.run.model.named_parameters())
        module = error.module
        if module is None:
            grads = ((name, p.grad) for name, p in named.items() if p.grad is not None)
            module = f"the gradient of {next((name for name, grad in grads if not finite(grad)), 'the loss')}"
        weights = [name for name, p in named.items() if name.startswith(f"{module}.") and not finite(p)]
        cause, changes = OVERFLOW, [self.run.lower_rate, CLIP]
        if self.run.dtype != torch.float32:
            changes.append(PRECISE)
        if weights:
            cause, changes = f"{weights[0]} itself is not finite", ["start from finite weights"]
        evidence = f"the first output that is not finite, at step {error.step}"
        yield self.finding(f"{module}, batch {error.position}", evidence, cause, *changes)

    def on_records(self, records: Sequence[Record]) -> Findings:
        for record in records:
            if "diverged" in record:
                evidence, module = str(record["diverged"]).partition(";")[0], record.get("module") or "the gradient"
                yield self.finding(module, evidence, OVERFLOW, self.run.lower_rate, CLIP, PRECISE)

    def on_checkpoint(self) -> Findings:
        weights = () if self.run.model is None else self.run.model.named_parameters()
        broken = next((name for name, weight in weights if not finite(weight)), None)
        if broken is not None:
            evidence = "a weight of the checkpoint is NaN or infinite"
            yield self.finding(broken, evidence, OVERFLOW, "resume from an earlier one")


def finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())
