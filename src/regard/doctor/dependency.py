"""What a place depends on: never on later tokens or padding, and on the order of earlier ones. Who breaks it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from regard.doctor import limits, order
from regard.doctor.finding import Finding
from regard.doctor.inside import Terms, few
from regard.doctor.probe import Outputs, Probe, apart_of, sound

ROWS, LENGTH = 2, 256


def judge(
    model: nn.Module, terms: Terms, batch: Any, vocabulary: int, positions: bool, turn: int = 0
) -> Iterator[Finding]:
    """``positions``: whether the model is told them; without, order is not asked for. ``turn``: which look this is."""
    batch = few(batch, ROWS, LENGTH)
    tokens, length = batch.inputs, batch.inputs.shape[1]
    if length < 4 or not sound(tokens, vocabulary):
        return
    asked = Probe(model, terms, tokens.shape)
    plain = asked.outputs(batch)
    half, name = length // 2, ""
    for place in (length - 1, half + turn * 7 % (length - half)):  # some masks are wrong at some places only
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % vocabulary
        changed = asked.outputs(batch._replace(inputs=other))
        name = name or order.heard(model, plain, changed)
        leak = list(_future(plain, changed, place))
        yield from leak
        if leak:
            break
    found = list(order.judge(asked, batch, "inputs", vocabulary, name)) if positions and name else []
    if hasattr(batch, "source") and batch.source.shape[1] >= 4 and sound(batch.source, vocabulary):
        yield from _padding(model, terms, batch, vocabulary)
        if positions and not found:
            found = list(_source_order(model, terms, batch, vocabulary))
    yield from found


def _source_order(model: nn.Module, terms: Terms, batch: Any, vocabulary: int) -> Iterator[Finding]:
    """The order of what is translated, in sentences cut to the length of the shortest."""
    least = int(batch.source_lengths.min())
    cut = batch._replace(source=batch.source[:, :least], source_lengths=batch.source_lengths.clamp(max=least))
    asked = Probe(model, terms, cut.source.shape)
    other = cut._replace(source=(cut.source + 1) % vocabulary)
    if name := order.heard(model, asked.outputs(cut), asked.outputs(other)):
        yield from order.judge(asked, cut, "source", vocabulary, name)


def _future(plain: Outputs, changed: Outputs, place: int) -> Iterator[Finding]:
    """The first module that knows of the token at ``place`` too early, if the last one still does."""
    if not plain or apart_of(plain[-1][1][:, :place], changed[-1][1][:, :place]) == 0:
        return
    for (name, before), (_, after) in zip(plain, changed, strict=False):
        apart = apart_of(before[:, :place], after[:, :place])
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
    more = told._replace(inputs=(batch.inputs + 1) % vocabulary)
    for shape, counted in ((source.shape, real), (batch.inputs.shape, torch.ones_like(batch.inputs).bool())):
        asked = Probe(model, terms, shape)
        plain = asked.outputs(told)
        # What hears nothing of the translation has padding of its own, whatever its shape looks like.
        deaf = {name for (name, one), (_, two) in zip(plain, asked.outputs(more), strict=False) if one.equal(two)}
        for (name, before), (_, after) in zip(plain, asked.outputs(other), strict=False):
            if counted is not real and name in deaf:
                continue
            apart = apart_of(before[counted], after[counted]) if before.shape == after.shape else 0.0
            if apart > limits.MOVED:
                evidence = f"other tokens behind a sentence's end move what it gives for the sentence, by {apart:.2g}"
                cause = "it is not told how long the sentences are, and looks at padding"
                change = "pass the lengths to it: Padded(lengths, size) as its keys; `regard prove` shows every place"
                yield Finding("mask_fault", name, evidence, cause, change)
                return
