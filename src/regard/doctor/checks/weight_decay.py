"""Weight decay that outweighs the gradient, and number formats that are not the configured ones."""

import statistics

import torch

from regard.doctor import Check, Findings, ReplayedStep, SidePass
from regard.doctor.checks.gradients import SILENT

#: The decay of a matrix in one step relative to the rest of its update. In equilibrium the two balance along the weight
#: only, and the rest of the update is far larger (Kosson et al. 2024).
HEAVY = 1.0
FEWEST = 3  # matrices
USUAL = 0.1  # a weight decay that is not too large for any run


class HeavyDecay(Check):
    kind, description = "heavy_decay", "weight decay outweighs the gradient"

    @torch.no_grad()
    def on_replay(self, replayed: ReplayedStep) -> Findings:
        optimizer = self.run.optimizer
        if optimizer is None:
            return
        shares, sizes = {}, {}
        for group in optimizer.groups:
            decay_rate = float(group.get("weight_decay") or 0.0)
            rate = (
                float(group["lr"]) * decay_rate if decay_rate > USUAL else 0.0
            )  # else the rest is small, not it large
            for p in group["params"]:
                change = replayed.changes.get(optimizer.names.get(p, ""))
                if change is not None and p.ndim >= 2 and rate:
                    decay, rest = rate * change.weight, change.update + rate * change.weight
                    shares[optimizer.names[p]] = float(decay.norm()) / max(float(rest.norm()), 1e-30)
                    sizes[optimizer.names[p]] = float(change.gradient.square().mean().sqrt())
        largest = max(sizes.values(), default=0.0)  # without a gradient, decay is all that is left
        shares = {name: share for name, share in shares.items() if sizes[name] > SILENT * largest}
        if len(shares) >= FEWEST and statistics.median(shares.values()) > HEAVY:
            name = max(shares, key=lambda one: shares[one])
            evidence = (
                f"in the median matrix it is {statistics.median(shares.values()):.3g} times the rest of the update"
            )
            evidence += f", in {name} {shares[name]:.3g} times"
            cause = "the weights shrink towards zero faster than they learn"
            yield self.finding(
                "train.optimizer.weight_decay", evidence, cause, f"--train.optimizer.weight_decay {USUAL}"
            )


class WrongPrecision(Check):
    kind, description = "wrong_precision", "numbers have another format than the configured one"
    rank = 0

    def on_model(self, side_pass: SidePass) -> Findings:
        change = "keep weights in float32; --train.precision chooses the format of matrix products"
        for name, parameter in side_pass.model.named_parameters():
            if parameter.dtype not in (torch.float32, torch.float64):
                evidence = f"the weights are {parameter.dtype}, in which small updates are lost"
                yield self.finding(name, evidence, "the model was converted after it was built", change)
                return
        if self.run.dtype != torch.float32:
            return
        for name, output in side_pass.plain:
            if output.dtype not in (torch.float32, torch.float64):
                evidence = f"its output is {output.dtype} in a run in float32"
                yield self.finding(name, evidence, "a cast or an autocast inside the model", change)
                return
