"""Heads, layers, weights and dropout without any effect."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Out
from regard.config import dump
from regard.doctor import Check, Findings, SidePass
from regard.doctor.checks.dead_units import in_stack
from regard.doctor.side_pass import SHORTEST, first_rows
from regard.prove.batches import Batch, take_rows
from regard.prove.comparison import forward_hooks

LENGTH = 64  # tokens of the row in which something is removed
MOST = 48  # layers and heads that are removed in one examination, each in a row of its own; others come in the next
EARLY = 10  # steps in which a layer that begins at zero may have no effect yet
ZEROS = 0.05  # the share of a trained matrix that is exactly zero

Edit = Callable[[Tensor | None, Tensor], Tensor]  # input and output of a module in one row to another output


class NoEffect(Check):
    """Removes single layers and heads: the output must change, be it by rounding."""

    kind, description = "no_effect", "a part of the model changes nothing"
    rank = 0

    def on_model(self, side_pass: SidePass) -> Findings:
        row = first_rows(side_pass.few, 1, LENGTH)
        if not side_pass.deep or self.run.history.last < EARLY or row.inputs.shape[1] < SHORTEST or not side_pass.plain:
            return
        last, outputs = side_pass.plain[-1][0], self._outputs(side_pass, row)
        for name, heads in outputs.items():
            twin = equal_heads(heads)
            if twin is not None:
                evidence = f"it has the same output as head {twin[0]} for every token"
                cause = "heads are copies of one another: repeated weights, or a wrong reshape"
                yield self.finding(f"{name}, head {twin[1]}", evidence, cause, "give every head weights of its own")
        removals = list(self._removals(side_pass, outputs))
        turn = side_pass.number * MOST % max(len(removals), 1)
        removals = (removals[turn:] + removals[:turn])[:MOST]
        batch = take_rows(row, [0] * len(removals))
        hooks = [(module, partial(remove, number, edit)) for number, (_, module, edit) in enumerate(removals)]
        plain = side_pass.outputs(batch, batch.inputs.shape, only=last)
        with forward_hooks(hooks):
            changed = side_pass.outputs(batch, batch.inputs.shape, only=last)
        for number, (name, _, edit) in enumerate(removals):
            if plain and changed and torch.equal(plain[0][1][number], changed[0][1][number]):
                how = "output replaced by its input" if edit is skip else "output set to zero"
                cause = "its output is zero, is not used, or is overwritten: it learns nothing"
                change = "follow its output: a mask, a zero, a wrong index or a break"
                yield self.finding(name, f"with its {how}, the model's output is the same to the bit", cause, change)

    def _removals(self, side_pass: SidePass, outputs: dict[str, Tensor]) -> Iterator[tuple[str, nn.Module, Edit]]:
        """What can be removed: its name, the module, and how."""
        blocks = side_pass.model.residual_blocks()
        yield from ((name, block, skip) for name, block in side_pass.model.named_modules() if block in blocks)
        mechanisms = dict(side_pass.model.mechanisms())
        for name, heads in outputs.items():
            yield from ((f"{name}, head {i}", mechanisms[name], partial(without, i)) for i in range(heads.shape[1]))

    def _outputs(self, side_pass: SidePass, few: Batch) -> dict[str, Tensor]:
        """The outputs [B, H, N, D] of the mechanisms that are called once and have several heads, by name."""
        calls: dict[str, list[object]] = {name: [] for name, _ in side_pass.model.mechanisms()}
        hooks = [(m, lambda _, given, out, n=n: calls[n].append(out)) for n, m in side_pass.model.mechanisms()]
        with forward_hooks(hooks):
            side_pass.forward(few)
        single = {name: outputs[0] for name, outputs in calls.items() if len(outputs) == 1}
        values = {name: out.values for name, out in single.items() if isinstance(out, Out)}
        return {name: one for name, one in values.items() if one.ndim == 4 and one.shape[1] > 1}


def remove(row: int, edit: Edit, module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
    """The output with the first tensor of one row edited."""
    if isinstance(output, Out):
        return output._replace(values=remove(row, edit, module, given, output.values))
    if isinstance(output, tuple):
        return (remove(row, edit, module, given, output[0]), *output[1:])
    changed = output.clone()
    changed[row] = edit(given[0][row] if given and isinstance(given[0], Tensor) else None, output[row])
    return changed


def skip(given: Tensor | None, output: Tensor) -> Tensor:
    """The input instead of the output. Where shapes differ, the output is changed: the module counts as used."""
    return given if given is not None and given.shape == output.shape else output + 1


def without(head: int, given: Tensor | None, output: Tensor) -> Tensor:
    """The output [H, N, D] with one head's part set to zero."""
    changed = output.clone()
    changed[head] = 0
    return changed


def equal_heads(heads: Tensor) -> tuple[int, int] | None:
    """Two heads [B, H, N, D] with the same output, which is not zero."""
    for j in range(heads.shape[1]):
        for i in range(j):
            if heads[:, j].any() and torch.equal(heads[:, i], heads[:, j]):
                return i, j
    return None


class ZeroWeights(Check):
    kind, description = "zero_weights", "trained weights are exactly zero"
    rank = 0
    follows = ("vanishing_gradients",)

    @torch.no_grad()
    def on_model(self, side_pass: SidePass) -> Findings:
        if self.run.history.last < EARLY:
            return
        for name, layer in side_pass.model.named_modules():
            if isinstance(layer, nn.Linear) and in_stack(name, layer):
                share = float((layer.weight == 0).float().mean())
                if ZEROS < share < 1:
                    evidence = f"{share:.0%} of its weights are zero, where training moves every weight"
                    cause = "a mask is multiplied in after every step, or the weights get neither gradient nor update"
                    yield self.finding(name, evidence, cause, "remove the mask, or what pads the matrix with zeros")


class DropoutOff(Check):
    kind, description = "dropout_off", "dropout has no effect in training"
    rank = 0

    def on_start(self) -> Findings:
        replay, rate = self.run.replay, dump(self.run.experiment)["model"].get("dropout", 0.0)
        if replay is None or not isinstance(rate, float) or not rate or self.run.data is None:
            return
        batch = self.run.batch(self.run.position)
        if self.run.model is None or self.run.model.carries_state or not self.run.usable(batch):
            return
        one, other = (replay.loss(self.run.model, batch, seed) for seed in (0, 1))
        if one == other:
            evidence = (
                f"two passes in training mode with other random numbers have the same loss, and dropout is {rate}"
            )
            cause = "dropout modules are in evaluation mode, were replaced, or are never called"
            yield self.finding(
                "model.dropout", evidence, cause, "call model.train() before a step; use the config's rate"
            )
