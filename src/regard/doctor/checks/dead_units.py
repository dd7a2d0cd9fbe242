"""Units of a layer that have the same value for every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from regard.doctor import Check, Finding, SidePass
from regard.doctor.side_pass import Hook

#: The share of a layer's units that are constant over thousands of tokens. Trained ReLU networks do well with half of
#: them, in early layers even 70 % (Voita et al. 2023, sec. 3), not with more.
DEAD = 0.72
FEWEST = 64  # tokens from which on a constant unit is evidence


class DeadUnits(Check):
    kind, description = "dead_units", "units are dead"
    needs_confirmation = True

    def on_model(self, side_pass: SidePass) -> Iterator[Finding]:
        constant: dict[str, tuple[int, int]] = {}  # constant units and all units, by the layer that reads or makes them

        def count(name: str, x: Any) -> None:
            rows = x.flatten(0, -2) if isinstance(x, Tensor) else None
            if rows is not None and rows.ndim == 2 and len(rows) >= FEWEST:
                least, most = rows.aminmax(dim=0)
                constant[name] = int((least == most).sum()), rows.shape[1]

        def inputs_of(name: str) -> Hook:
            return lambda layer, inputs, output: count(name, inputs[0])

        def outputs_of(name: str) -> Hook:
            return lambda layer, inputs, output: count(name, output[0])

        hooks = []
        for name, module in side_pass.model.named_modules():
            if isinstance(module, nn.RNNBase):
                hooks.append((module, outputs_of(name)))
            elif isinstance(module, nn.Linear) and any(part.isdigit() for part in name.split(".")):
                hooks.append((module, inputs_of(name)))
        side_pass.with_hooks(hooks)
        for name, (still, units) in constant.items():
            if still > DEAD * units:
                recurrent = isinstance(side_pass.model.get_submodule(name), nn.RNNBase)
                where = name if recurrent else name.rpartition(".")[0] or name
                evidence = f"{still:,} of the {units:,} units that {name} reads are the same for every token"
                cause = "activations that are always off or always saturated: biases or weights out of range"
                change = "a lower --train.optimizer.lr, or --model.feedforward gelu, which never cuts off fully"
                yield self.finding(where, evidence, cause, change)
