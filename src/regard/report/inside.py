"""What only the model itself can show: its heads on a passage, and what each place of the context is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.attention import Mechanism
from regard.config import load
from regard.data import DataConfig
from regard.errors import UserError
from regard.generate.load import Writer, load_writer
from regard.look import Attention, Head, attentions, heads, passage, rows
from regard.look.pictures.align import Alignment, align
from regard.models import ModelConfig
from regard.report.subject import Sentences
from regard.runs import Run
from regard.train.device import flops_per_token

T = TypeVar("T")
#: Tokens of the passage whose maps are drawn, heads that get one, and validation tokens that positions are measured on.
PASSAGE, MAPS, TOKENS = 64, 64, 2**16
BATCH, LOGITS = 16, 2**26  # windows at a time, and logits
ALIGNED = 2  # translations whose alignment is drawn


class Size(NamedTuple):
    """How large the model is."""

    parameters: int
    flops: float | None  # forward and backward of one token
    attentions: int = 0


class Positions(NamedTuple):
    """The mean loss at each place of the context, and half the width of its 95 % interval."""

    mean: list[float]
    margin: list[float]
    windows: int  # that went into it
    of: int  # that there are


class Inside(NamedTuple):
    """A look into the newest checkpoint."""

    step: int
    heads: list[Head]
    maps: dict[tuple[int, int], list[bytes]]  # (layer, head) -> rows of weights, as grey
    passage: list[str]  # token by token
    held_out: bool
    positions: Positions | None
    alignments: Sequence[Alignment] = ()  # of translations: where each word of them was written from


def attempt(notes: list[str], what: str, work: Callable[[], T]) -> T | None:
    """The outcome of `work`; None, and a note why, where a run has not what it takes."""
    try:
        return work()
    except UserError as problem:
        notes.append(f"{what}: {problem}.")
    except Exception as problem:  # a model of a kind that cannot be looked at is no reason to have no report
        notes.append(f"{what}: {type(problem).__name__}: {problem}.")
    return None


def measure(config: dict[str, Any]) -> Size:
    """The size of a run's model, from its config alone."""
    with torch.device("meta"):
        model: Any = load(ModelConfig, config["model"]).build()
    try:
        flops = flops_per_token(model)
    except AttributeError:  # the formula is that of a Transformer
        flops = None
    attentions = sum(isinstance(module, Mechanism) for module in model.modules())
    return Size(sum(p.numel() for p in model.parameters()), flops, attentions)


def inspect(run: Run, notes: list[str]) -> Inside | None:
    """Look into the newest checkpoint; what cannot be looked at is left out and noted."""
    writer = attempt(notes, "Attention maps and loss by position are left out", lambda: load_writer(run))
    if writer is None:
        return None
    data: Any = attempt(notes, "Attention maps and loss by position are left out", lambda: _data(run, writer))
    if data is None:
        return None
    return translated(writer, data, notes) if hasattr(data, "specials") else read(writer, data, notes)


def translated(writer: Writer, data: Any, notes: list[str]) -> Inside:
    """Held-out sentences, their translations, and where each word of them looked."""
    model: Any = writer.model
    subject = Sentences(data, model.config, torch.device("cpu"))
    seen = attempt(notes, "Attention is left out", lambda: attentions(model, lambda: subject.forward(model))) or []
    made = subject.translations(model)[-ALIGNED:]
    found = attempt(
        notes,
        "Alignments are left out",
        lambda: [align(model, data.tokenizer, data.specials, one.source, one.tokens) for one in made],
    )
    return Inside(writer.step, heads(seen), {}, [], subject.held_out, None, found or [])


def read(writer: Writer, data: Any, notes: list[str]) -> Inside:
    """Heads on a passage of the text, and what each place of the context is worth."""
    model: Any = writer.model
    shown = passage(data, PASSAGE)
    tokens = shown.tokens
    seen = attempt(notes, "Attention maps are left out", lambda: attentions(model, lambda: model(tokens[None]))) or []
    if not seen and not any(note.startswith("Attention maps") for note in notes):
        notes.append("Attention maps are left out: no layer of this model has attention weights to show.")
    before = len(notes)
    positions = attempt(notes, "The loss by position is left out", lambda: by_position(model, data))
    if positions is None and len(notes) == before:
        notes.append("The loss by position is left out: it takes two whole windows of held-out text.")
    return Inside(
        step=writer.step,
        heads=heads(seen),
        maps={(n, h): grey for n in _drawn(seen) for h, grey in enumerate(_maps(seen[n - 1]), start=1)},
        passage=[writer.tokenizer.decode([token]) for token in tokens.tolist()],
        held_out=shown.held_out,
        positions=positions,
    )


@torch.no_grad()
def by_position(model: Any, data: Any, most: int = TOKENS) -> Positions | None:
    """The mean loss at every place of whole validation windows, evenly spread ones; None if there are too few."""
    length = data.context
    whole = data.validation_count // length
    if whole < 2:
        return None
    stride = max(1, math.ceil(whole * length / most))
    losses: list[Tensor] = []
    size = max(1, min(BATCH, LOGITS // (length * data.vocabulary)))
    for batch in islice(data.validation_batches(size), 0, None, stride):
        logits = model(batch.inputs) if batch.slots is None else model(batch.inputs, batch.slots)
        flat = logits.flatten(0, 1).float(), batch.targets.flatten()
        each = functional.cross_entropy(*flat, reduction="none", ignore_index=-1).view(batch.targets.shape)
        losses.append(each[(batch.targets >= 0).all(1)])
    found = torch.cat(losses).double()  # [windows, N]
    margin = 1.96 * found.std(0) / math.sqrt(len(found))
    return Positions(found.mean(0).tolist(), margin.tolist(), len(found), whole)


def _data(run: Run, writer: Writer) -> Any:
    config: Any = run.load(DataConfig, "data")
    data = config.build(writer.model.config.context)
    writer.check(data)
    return data


def _maps(attention: Attention) -> list[list[bytes]]:
    """Each head's weights as rows of grey. The square root lifts small weights into sight."""
    (block,) = rows(attention, block=attention.q.shape[2])
    grey = (block.weights[0].sqrt() * 255).round().to(torch.uint8)  # [H, Q, K]
    return [[bytes(row) for row in head] for head in grey.tolist()]


def _drawn(seen: list[Attention]) -> list[int]:
    """The layers, counted from 1, whose maps are drawn: all of them, or as many as a page bears, evenly spread."""
    if not seen:
        return []
    most = max(1, MAPS // max(attention.q.shape[1] for attention in seen))
    return sorted({round(i * (len(seen) - 1) / max(1, most - 1)) + 1 for i in range(most)})
