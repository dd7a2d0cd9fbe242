"""What a place depends on: never on later tokens or padding, and on the order of earlier ones. Who breaks it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attend import Mechanism
from regard.doctor import limits
from regard.doctor.finding import Finding
from regard.doctor.inside import Terms, few
from regard.look import at_rest

ROWS, LENGTH = 2, 256
Outputs = list[tuple[str, Tensor]]  # in order of execution, the innermost first; [B, N, ...]


def judge(
    model: nn.Module, terms: Terms, batch: Any, vocabulary: int, positions: bool, turn: int = 0
) -> Iterator[Finding]:
    """``positions``: whether the model is told them; without, order is not asked for. ``turn``: which look this is."""
    batch = few(batch, ROWS, LENGTH)
    tokens, length = batch.inputs, batch.inputs.shape[1]
    if length < 4 or not _sound(tokens, vocabulary):
        return
    asked = Asked(model, terms, tokens.shape)
    plain = asked.outputs(batch)
    half = length // 2
    for place in (length - 1, half + turn * 7 % (length - half)):  # some masks are wrong at some places only
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % vocabulary
        leak = list(_future(plain, asked.outputs(batch._replace(inputs=other)), place))
        yield from leak
        if leak:
            break
    if positions:
        turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
        others = torch.cat(((tokens[:, :-1] + 1) % vocabulary, tokens[:, -1:]), dim=1)
        if not torch.equal(turned, tokens):
            changed = (asked.outputs(batch._replace(inputs=these)) for these in (turned, others))
            yield from _order(model, plain, *changed)
    if hasattr(batch, "source") and batch.source.shape[1] >= 4 and _sound(batch.source, vocabulary):
        yield from _padding(model, terms, batch, vocabulary)


class Asked(NamedTuple):
    """A model that is asked for what each of its modules gives for tokens of one shape [B, N]."""

    model: nn.Module
    terms: Terms
    shape: tuple[int, ...]

    def outputs(self, batch: Any) -> Outputs:
        """Of every module that gives something for each token, what it gave."""
        found: Outputs = []

        def watch(name: str) -> Any:
            def note(_: nn.Module, given: Any, out: Any) -> None:
                first = out[0] if isinstance(out, tuple) and len(out) else out
                by_place = _by_place(first, *self.shape) if isinstance(first, Tensor) else None
                if by_place is not None and by_place.is_floating_point():
                    found.append((name, by_place.detach().clone()))

            return note

        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if name:
                    stack.callback(module.register_forward_hook(watch(name)).remove)
            stack.enter_context(at_rest(self.model))
            self.terms(self.model, batch)
        return found


def _by_place(x: Tensor, rows: int, length: int) -> Tensor | None:
    """[B, N, ...] of [B, N, C], [B, N, H, D] or [B, H, N, D]; None for anything else, and where it could be both."""
    places = [axis for axis in (1, 2) if x.ndim > axis + 1 and x.shape[axis] == length]
    return x.transpose(1, places[0]) if x.ndim in (3, 4) and len(x) == rows and len(places) == 1 else None


def _future(plain: Outputs, changed: Outputs, place: int) -> Iterator[Finding]:
    """The first module that knows of the token at ``place`` too early, if the last one still does."""
    if not plain or _apart(plain[-1][1][:, :place], changed[-1][1][:, :place]) == 0:
        return
    for (name, before), (_, after) in zip(plain, changed, strict=False):
        apart = _apart(before[:, :place], after[:, :place])
        if before.shape == after.shape and apart > limits.MOVED:
            evidence = (
                f"another token at place {place} moves what it gives for earlier ones, by {apart:.2g} of its size"
            )
            cause = "its mask is missing, ignored or off by one"
            change = "pass the plan of a Causal() mask to it; `regard prove` shows every place"
            yield Finding("mask_fault", name, evidence, cause, change)
            return


def _padding(model: nn.Module, terms: Terms, batch: Any, vocabulary: int) -> Iterator[Finding]:
    """The first module that gives something else because other tokens stand behind a sentence's end."""
    size = batch.source.shape[1]
    source = batch.source[:, : size - (size == batch.inputs.shape[1])]  # of another shape than the translations
    lengths = batch.source_lengths.clamp(max=source.shape[1] - 2)  # so that there is something behind each
    real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
    told = batch._replace(source=source, source_lengths=lengths)
    other = told._replace(source=torch.where(real, source, (source + 1) % vocabulary))
    for shape, counted in ((source.shape, real), (batch.inputs.shape, torch.ones_like(batch.inputs).bool())):
        asked = Asked(model, terms, shape)
        for (name, before), (_, after) in zip(asked.outputs(told), asked.outputs(other), strict=False):
            apart = _apart(before[counted], after[counted]) if before.shape == after.shape else 0.0
            if apart > limits.MOVED:
                evidence = f"other tokens behind a sentence's end move what it gives for the sentence, by {apart:.2g}"
                cause = "it is not told how long the sentences are, and looks at padding"
                change = "pass the lengths to it: Padded(lengths, size) as its keys; `regard prove` shows every place"
                yield Finding("mask_fault", name, evidence, cause, change)
                return


def _order(model: nn.Module, plain: Outputs, turned: Outputs, others: Outputs) -> Iterator[Finding]:
    """The first attention: deeper ones know the order from how much each token could see.

    One that does not listen to other tokens at all cannot tell their order either, and that is another fault.
    """
    mechanisms = {name for name, module in model.named_modules() if isinstance(module, Mechanism)}
    for (name, before), (_, after), (_, third) in zip(plain, turned, others, strict=False):
        listens = _apart(before[:, -1:], third[:, -1:])
        if name in mechanisms and listens:  # an encoder's hears nothing of these tokens
            apart = _apart(before[:, -1:], after[:, -1:])
            if apart < limits.MOVED and listens > 100 * limits.MOVED:
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
