"""Heads and layers without any effect."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Out
from regard.doctor import Check, Findings, ModelPass, SidePass
from regard.doctor.calls import record_calls
from regard.doctor.model_pass import first_rows
from regard.doctor.side_pass import SHORTEST
from regard.prove.batches import Batch, take_rows
from regard.prove.comparison import forward_hooks

LENGTH = 32  # tokens of the row in which something is removed
MOST = 48  # layers and heads that are removed in one examination, one per row; others come in the next
EARLY = 10  # steps in which a layer that begins at zero may have no effect yet

Edit = Callable[[Tensor | None, Tensor], Tensor]  # input and output of a module in one row to another output


class NoEffect(Check):
    """Removes single layers and heads: the output must change, be it by rounding."""

    kind, description = "no_effect", "a part of the model changes nothing"
    rank = 0

    def on_model(self, side_pass: SidePass) -> Findings:
        row = first_rows(side_pass.few, 1, LENGTH)
        if not side_pass.deep or self.run.history.last < EARLY or row.inputs.shape[1] < SHORTEST or not side_pass.plain:
            return
        last, removals = side_pass.plain[-1][0], list(self._removals(side_pass))
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

    def on_pass(self, model_pass: ModelPass) -> Findings:
        """The same for arrays: one block is removed in each row, and the last output of that row compared."""
        early = self.run.history.last < EARLY or not model_pass.independent_rows
        if isinstance(model_pass, SidePass) or not model_pass.deep or early:
            return
        blocks = model_pass.model.residual_blocks()
        removals = [(name, one) for name, one in model_pass.model.named_modules() if one in blocks][:MOST]
        batch = take_rows(model_pass.few, [0] * len(removals))
        hooks = [(block, partial(remove, number, skip)) for number, (_, block) in enumerate(removals)]
        plain = self._last(model_pass, batch)
        with forward_hooks(hooks):
            changed = self._last(model_pass, batch)
        for number, (name, _) in enumerate(removals):
            if plain is not None and changed is not None and torch.equal(plain[number], changed[number]):
                evidence = "with its output replaced by its input, the model's output is the same to the bit"
                cause = "its output is zero, is not used, or is overwritten: it learns nothing"
                yield self.finding(name, evidence, cause, "follow its output: a mask, a zero, a wrong index or a break")

    def _last(self, model_pass: ModelPass, batch: Batch) -> Tensor | None:
        """The last output of a module with an entry for each row."""
        calls = record_calls(model_pass.model, lambda: model_pass.total(batch)) if len(batch.inputs) else []
        return next((one.output for one in reversed(calls) if len(one.output) == len(batch.inputs)), None)

    def _removals(self, side_pass: SidePass) -> Iterator[tuple[str, nn.Module, Edit]]:
        """What can be removed: its name, the module, and how. Heads of mechanisms that are called once."""
        blocks = side_pass.model.residual_blocks()
        yield from ((name, block, skip) for name, block in side_pass.model.named_modules() if block in blocks)
        names = [call.name for call in side_pass.common[1]]
        mechanisms = {name for name, _ in side_pass.model.mechanisms() if names.count(name) == 1}
        for name, module, _, output in side_pass.common[1]:
            if name in mechanisms and output.ndim == 4 and output.shape[1] > 1:
                yield from ((f"{name}, head {i}", module, partial(without, i)) for i in range(output.shape[1]))


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
