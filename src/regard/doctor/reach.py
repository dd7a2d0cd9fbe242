"""What a place depends on: never on later tokens, and on the order of the earlier ones. Which module breaks it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from regard.attend import Mechanism
from regard.doctor import limits
from regard.doctor.finding import Finding
from regard.doctor.inside import Terms, few
from regard.look import at_rest

ROWS, LENGTH = 2, 256
Outputs = list[tuple[str, Tensor]]  # in order of execution, the innermost first; [B, N, ...]


def judge(model: nn.Module, terms: Terms, batch: Any, vocabulary: int, positions: bool) -> Iterator[Finding]:
    """``positions``: whether the model is told them; without, order is not asked for."""
    batch = few(batch, ROWS, LENGTH)
    tokens = batch.inputs
    if tokens.shape[1] < 4 or not _sound(tokens, vocabulary):
        return
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % vocabulary
    plain = outputs(model, terms, batch)
    yield from _future(plain, outputs(model, terms, batch._replace(inputs=other)))
    if positions:
        turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
        others = torch.cat(((tokens[:, :-1] + 1) % vocabulary, tokens[:, -1:]), dim=1)
        if not torch.equal(turned, tokens):
            changed = (outputs(model, terms, batch._replace(inputs=these)) for these in (turned, others))
            yield from _order(model, plain, *changed)


def outputs(model: nn.Module, terms: Terms, batch: Any) -> Outputs:
    """Of every module that gives something for each token of the batch, what it gave."""
    found: Outputs = []
    shape = batch.inputs.shape

    def watch(name: str) -> Any:
        def note(_: nn.Module, given: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple) and len(out) else out
            if isinstance(first, Tensor) and first.is_floating_point() and (x := _by_place(first, *shape)) is not None:
                found.append((name, x.detach().clone()))

        return note

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(watch(name)).remove)
        stack.enter_context(at_rest(model))
        terms(model, batch)
    return found


def _by_place(x: Tensor, rows: int, length: int) -> Tensor | None:
    """[B, N, ...] of [B, N, C], [B, N, H, D] or [B, H, N, D]; None for anything else, and where it could be both."""
    places = [axis for axis in (1, 2) if x.ndim > axis + 1 and x.shape[axis] == length]
    return x.transpose(1, places[0]) if x.ndim in (3, 4) and len(x) == rows and len(places) == 1 else None


def _future(plain: Outputs, changed: Outputs) -> Iterator[Finding]:
    """The first module that knows of the last token too early, if the last one still does."""
    if not plain or _apart(plain[-1][1][:, :-1], changed[-1][1][:, :-1]) == 0:
        return
    for (name, before), (_, after) in zip(plain, changed, strict=False):
        apart = _apart(before[:, :-1], after[:, :-1])
        if before.shape == after.shape and apart > limits.MOVED:
            evidence = f"another last token moves what it gives for earlier ones, by {apart:.2g} of its size"
            cause = "its mask is missing, ignored or off by one"
            change = "pass the plan of a Causal() mask to it; `regard prove` shows every place"
            yield Finding("mask_fault", name, evidence, cause, change)
            return


def _order(model: nn.Module, plain: Outputs, turned: Outputs, others: Outputs) -> Iterator[Finding]:
    """The first attention: deeper ones know the order from how much each token could see.

    One that does not listen to other tokens at all cannot tell their order either, and that is another fault.
    """
    mechanisms = {name for name, module in model.named_modules() if isinstance(module, Mechanism)}
    for (name, before), (_, after), (_, third) in zip(plain, turned, others, strict=False):
        if name in mechanisms:
            apart = _apart(before[:, -1:], after[:, -1:])
            if apart < limits.MOVED and _apart(before[:, -1:], third[:, -1:]) > 100 * limits.MOVED:
                evidence = (
                    f"with the earlier tokens in reverse order {name} gives the last one the same, to {apart:.1g}"
                )
                cause = "positions are made but never reach the scores, or are the same everywhere"
                change = "--model.position rotary, and see that its angles grow with the place"
                yield Finding("position_fault", "position", evidence, cause, change)
            return


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or not one.numel():
        return 0.0
    size = float(one.float().abs().amax())
    return float((one.float() - other.float()).abs().amax()) / size if size > 0 else 0.0


def _sound(tokens: Tensor, vocabulary: int) -> bool:
    least, most = tokens.aminmax()
    return int(least) >= 0 and int(most) < vocabulary
