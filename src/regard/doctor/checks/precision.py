"""Number formats that are not the configured ones."""

import torch

from regard.doctor import Check, Findings, SidePass


class WrongPrecision(Check):
    kind, description = "wrong_precision", "numbers have another format than the configured one"
    rank = 0

    def on_model(self, side_pass: SidePass) -> Findings:
        weights = ((name, p.dtype, "weights") for name, p in side_pass.model.named_parameters())
        outputs = ((call.name, call.output.dtype, "output") for call in side_pass.common[1])
        for name, dtype, what in (*weights, *(outputs if self.run.dtype == torch.float32 else ())):
            if dtype not in (torch.float32, torch.float64):
                evidence = (
                    f"the {what} are {dtype}, in which small updates are lost"
                    if what == "weights"
                    else f"its {what} is {dtype} in a run in float32"
                )
                cause = "the model was converted after it was built, or has a cast or an autocast inside"
                change = "keep weights in float32; --train.precision chooses the format of matrix products"
                yield self.finding(name, evidence, cause, change)
                return
