"""Units of a layer that have the same value for every token."""

from typing import Any

from torch import Tensor, nn

from regard.doctor import Check, Findings, SidePass
from regard.doctor.side_pass import Measure

#: The share of a layer's units that are constant over thousands of tokens. Trained ReLU networks do well with half of
#: them, in early layers even 70 % (Voita et al. 2023, sec. 3), not with more.
DEAD = 0.72
#: The same where no other unit is ever zero: units of smooth activations do not die, they are masked.
MASKED = 0.05
FEWEST = 64  # tokens from which on a constant unit is evidence


def in_stack(name: str, layer: nn.Module) -> bool:
    """Recurrent layers, and linear ones of numbered blocks."""
    numbered = any(part.isdigit() for part in name.split("."))
    return isinstance(layer, nn.RNNBase) or (isinstance(layer, nn.Linear) and numbered)


def constant_units(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> tuple[int, int, bool]:
    """Constant units and all units, of those that a linear layer reads or a recurrent one makes.

    The third value: no unit that varies is ever zero.
    """
    x = output[0] if isinstance(layer, nn.RNNBase) else inputs[0]
    if not isinstance(x, Tensor) or x.shape[:-1].numel() < FEWEST:
        return 0, 0, False
    x = x.flatten(0, -2)
    least, most = x.aminmax(dim=0)
    varies = least != most
    return int((~varies).sum()), x.shape[-1], bool(varies.any()) and not bool((x[:, varies] == 0).any())


class DeadUnits(Check):
    kind, description = "dead_units", "units are dead"
    needs_confirmation = True
    measures = (Measure(in_stack, constant_units),)

    def on_model(self, side_pass: SidePass) -> Findings:
        layers = dict(side_pass.model.named_modules())
        for name, calls in side_pass.measured(self.measures[0]).items():
            constant, units, smooth = calls[-1] if calls else (0, 0, False)
            masked = smooth and bool(
                side_pass.model.mechanisms()
            )  # a wide convolution reads padding, which is constant
            if constant > (MASKED if masked else DEAD) * units:
                recurrent = isinstance(layers[name], nn.RNNBase)
                where = name if recurrent else name.rpartition(".")[0] or name
                evidence = f"{constant:,} of the {units:,} units that {name} reads are the same for every token"
                cause = "activations that are always off or always saturated: biases or weights out of range"
                changes = "a lower --train.optimizer.lr", "--model.feedforward gelu, which never cuts off fully"
                yield self.finding(where, evidence, cause, *changes)
