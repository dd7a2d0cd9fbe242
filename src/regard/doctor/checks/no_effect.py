"""Heads, layers, weights and dropout without any effect."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Out
from regard.config import dump
from regard.doctor import Check, Finding, Findings, SidePass
from regard.doctor.checks.dead_units import in_stack
from regard.doctor.side_pass import SHORTEST, first_rows
from regard.prove.batches import Batch
from regard.prove.comparison import Outputs, forward_hooks

LENGTH = 64  # tokens of the row in which something is removed
PASSES = 12  # for heads in one examination; further layers come in the next ones
EARLY = 10  # steps in which a layer that begins at zero may have no effect yet
ZEROS = 0.05  # the share of a trained matrix that is exactly zero

Edit = Callable[[tuple[Any, ...], Any], Any]  # (inputs, output) of a module to another output


class NoEffect(Check):
    """Removes single layers and heads: the output must change, be it by rounding."""

    kind, description = "no_effect", "a part of the model changes nothing"
    rank = 0

    def on_model(self, side_pass: SidePass) -> Findings:
        few = first_rows(side_pass.few, 1, LENGTH)
        if not side_pass.deep or self.run.history.last < EARLY or few.inputs.shape[1] < SHORTEST or not side_pass.plain:
            return
        last = side_pass.plain[-1][0]
        plain = side_pass.outputs(few, few.inputs.shape, only=last)
        blocks = side_pass.model.residual_blocks()
        for name, block in side_pass.model.named_modules():
            if block in blocks and self._same(side_pass, few, last, plain, block, skip):
                yield self._nothing(name, "with its output replaced by its input")
        mechanisms, outputs = side_pass.model.mechanisms(), self._outputs(side_pass, few)
        turned, left = side_pass.number % max(len(mechanisms), 1), PASSES
        for name, mechanism in mechanisms[turned:] + mechanisms[:turned]:
            heads = outputs.get(name)
            if heads is None or left < heads.shape[1]:
                continue
            left -= heads.shape[1]
            twin = equal_heads(heads)
            if twin is not None:
                evidence = f"it has the same output as head {twin[0]} for every token"
                cause = "heads are copies of one another: repeated weights, or a wrong reshape"
                yield self.finding(f"{name}, head {twin[1]}", evidence, cause, "give every head weights of its own")
            for head in range(heads.shape[1]):
                if self._same(side_pass, few, last, plain, mechanism, without(head)):
                    yield self._nothing(f"{name}, head {head}", "with its output set to zero")

    def _nothing(self, where: str, how: str) -> Finding:
        cause = "its output is zero, is not used, or is overwritten: it learns nothing"
        change = "follow its output: a mask, a zero, a wrong index or a break"
        return self.finding(where, f"{how}, the model's output is the same to the bit", cause, change)

    def _outputs(self, side_pass: SidePass, few: Batch) -> dict[str, Tensor]:
        """The outputs [B, H, N, D] of the mechanisms that are called once and have several heads, by name."""
        calls: dict[str, list[object]] = {name: [] for name, _ in side_pass.model.mechanisms()}
        hooks = [(m, lambda _, given, out, n=n: calls[n].append(out)) for n, m in side_pass.model.mechanisms()]
        with forward_hooks(hooks):
            side_pass.forward(few)
        single = {name: outputs[0] for name, outputs in calls.items() if len(outputs) == 1}
        values = {name: out.values for name, out in single.items() if isinstance(out, Out)}
        return {name: one for name, one in values.items() if one.ndim == 4 and one.shape[1] > 1}

    def _same(self, side_pass: SidePass, few: Batch, last: str, plain: Outputs, module: nn.Module, edit: Edit) -> bool:
        with forward_hooks([(module, lambda _, given, out: edit(given, out))]):
            changed = side_pass.outputs(few, few.inputs.shape, only=last)
        return bool(plain) and bool(changed) and torch.equal(plain[0][1], changed[0][1])


def skip(given: tuple[Any, ...], output: Any) -> Any:
    """The input instead of the output, or of the first of several. Where shapes differ, the output is changed instead,
    so that the module counts as used.
    """
    if isinstance(output, tuple):
        return (skip(given, output[0]), *output[1:])
    same = bool(given) and isinstance(given[0], Tensor) and given[0].shape == output.shape
    return given[0] if same else output + 1


def without(head: int) -> Edit:
    """The output with one head's part set to zero."""

    def edit(given: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Out):
            return output
        values = output.values.clone()
        values[:, head] = 0
        return output._replace(values=values)

    return edit


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
