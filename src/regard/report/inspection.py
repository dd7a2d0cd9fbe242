"""Measurements of the newest checkpoint: heads on a passage, alignments of translations, loss by position."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.config.parts import MissingPart
from regard.data import DataConfig, LabeledData
from regard.data.base import Data, TextBatch
from regard.data.translation.pairs import PairData
from regard.errors import UserError
from regard.generate.load import LoadedModel, load_model
from regard.look import Attention, Head, attentions, dense_weights, heads, passage
from regard.look.pictures.align import Alignment, align
from regard.look.statistics.maps import to_bytes
from regard.models import ModelConfig, flops_per_token
from regard.models.base import Model, Seq2SeqModel
from regard.models.shapes import build_on_meta
from regard.report.probes import TranslationProbe
from regard.runs import Run

T = TypeVar("T")
#: Tokens of the passage whose maps are drawn, heads that get a map, validation tokens for the loss by position.
PASSAGE, MAPS, TOKENS = 64, 64, 2**16
BATCH, LOGITS = 16, 2**26  # windows at a time, and logits
ALIGNED = 2  # translations whose alignment is drawn


class ModelSize(NamedTuple):
    """The size of a model."""

    parameters: int
    flops: float | None  # forward and backward of one token
    attentions: int = 0


class PositionLosses(NamedTuple):
    """The mean loss at each position of the context, and half the width of its 95 % interval."""

    mean: list[float]
    margin: list[float]
    windows: int  # that were measured
    of: int  # that the validation part has


class Inspection(NamedTuple):
    """Measurements of one checkpoint."""

    step: int
    heads: list[Head]
    maps: dict[tuple[int, int], list[bytes]]  # (layer, head) -> rows of gray
    passage: list[str]  # token by token
    held_out: bool
    positions: PositionLosses | None
    alignments: Sequence[Alignment] = ()  # of translations


def attempt(notes: list[str], what: str, work: Callable[[], T]) -> T | None:
    """The result of ``work``; None, and a note why, if it raises. Only parts that are not loaded are an error."""
    try:
        return work()
    except MissingPart:
        raise
    except Exception as problem:  # the report is written also for models that cannot be inspected
        kind = "" if isinstance(problem, UserError) else f"{type(problem).__name__}: "
        notes.append(f"{what}: {kind}{problem}.")
    return None


def model_size(run: Run) -> ModelSize:
    """The size of a run's model, from its config alone."""
    model = build_on_meta(run.load(ModelConfig, "model"))
    parameters = sum(p.numel() for p in model.parameters())
    return ModelSize(parameters, flops_per_token(model), len(model.mechanisms()))


def inspect(run: Run, notes: list[str], seconds: float | None = None) -> Inspection | None:
    """Inspect the newest checkpoint; notes say what is left out. ``seconds``: see ``position_losses``."""
    what = "Attention maps and loss by position are left out"
    loaded = attempt(notes, what, lambda: load_model(run))
    data = None if loaded is None else attempt(notes, what, lambda: _data(run, loaded))
    if loaded is None or data is None:
        return None
    if data.shape is not None:
        notes.append(
            f"{what}: they are drawn for texts, and the data are arrays; regard look {run.path} shows attention."
        )
        return None
    if isinstance(data, PairData):
        return inspect_translation(loaded, data, notes)
    return inspect_text(loaded, data, notes, seconds)


def inspect_translation(loaded: LoadedModel, data: PairData, notes: list[str]) -> Inspection:
    """Heads and alignments on held-out sentences."""
    model = loaded.model
    assert isinstance(model, Seq2SeqModel)
    probe = TranslationProbe(data, model.config, torch.device("cpu"))
    seen = attempt(notes, "Attention is left out", lambda: attentions(model, lambda: probe.forward(model))) or []
    chosen = probe.translations(model)[-ALIGNED:]
    alignments = attempt(
        notes,
        "Alignments are left out",
        lambda: [align(model, data.tokenizer, data.specials, one.source, one.tokens) for one in chosen],
    )
    return Inspection(loaded.step, heads(seen), {}, [], probe.held_out, None, alignments or [])


def inspect_text(loaded: LoadedModel, data: Data, notes: list[str], seconds: float | None) -> Inspection:
    """Heads on a passage of text, and the loss by position."""
    model = loaded.model
    shown = passage(data, PASSAGE)
    tokens = shown.tokens
    seen = attempt(notes, "Attention maps are left out", lambda: attentions(model, lambda: model(tokens[None])))
    if seen == []:
        notes.append("Attention maps are left out: no layer of this model has observable attention weights.")
    before = len(notes)
    what = "The loss by position is left out"
    positions = attempt(notes, what, lambda: position_losses(model, data, seconds))
    if positions is None and len(notes) == before:
        notes.append("The loss by position is left out: it takes two whole windows of held-out text.")
    seen = seen or []
    return Inspection(
        step=loaded.step,
        heads=heads(seen),
        maps={(n, h): gray for n in _drawn(seen) for h, gray in enumerate(_maps(seen[n - 1]), start=1)},
        passage=[loaded.tokenizer.decode([token]) for token in tokens.tolist()],
        held_out=shown.held_out,
        positions=positions,
    )


@torch.no_grad()
def position_losses(model: Model, data: Data, seconds: float | None = None) -> PositionLosses | None:
    """The mean loss at every position of evenly spaced whole validation windows; None if there are too few.

    ``seconds``: about as much time as it may take; a batch of windows is measured in any case.
    """
    length = model.config.context
    whole = (data.validation_count or 0) // length
    if whole < 2 or isinstance(data, LabeledData):  # whose targets are not the tokens
        return None
    stride = max(1, math.ceil(whole * length / TOKENS))
    parts: list[Tensor] = []
    size = max(1, min(BATCH, LOGITS // (length * model.config.vocabulary)))

    def measure(batch: TextBatch) -> None:
        logits = model(batch.inputs) if batch.slots is None else model(batch.inputs, batch.slots)
        flat = logits.flatten(0, 1).float(), batch.targets.flatten()
        each = functional.cross_entropy(*flat, reduction="none", ignore_index=-1).view(batch.targets.shape)
        parts.append(each[(batch.targets >= 0).all(1)])

    batches, began = data.validation_batches(size), time.perf_counter()
    measure(next(batches))
    if seconds is not None:
        stride = max(stride, math.ceil(whole / size * (time.perf_counter() - began) / max(seconds, 1e-9)))
    for batch in islice(batches, stride - 1, None, stride):
        measure(batch)
    if sum(map(len, parts)) < 2:  # rows with a prompt, which has no targets
        return None
    losses = torch.cat(parts).double()  # [windows, N]
    margin = 1.96 * losses.std(0) / math.sqrt(len(losses))
    return PositionLosses(losses.mean(0).tolist(), margin.tolist(), len(losses), whole)


def _data(run: Run, loaded: LoadedModel) -> Data:
    config = run.load(DataConfig, "data")
    context = loaded.model.config.context
    started = run.config.get("init") is not None  # from a trained model, with its tokenizer
    data = config.build(context, tokenizer=loaded.tokenizer) if started else config.build(context)
    loaded.check_data(data)
    return data


def _maps(attention: Attention) -> list[list[bytes]]:
    """Each head's weights as rows of gray. The square root makes small weights visible."""
    return [[bytes(row) for row in head] for head in to_bytes(dense_weights(attention)[0])]


def _drawn(seen: list[Attention]) -> list[int]:
    """The layers, counted from 1, whose maps are drawn: all, or as many as a page can show, evenly spaced."""
    if not seen:
        return []
    most = max(1, MAPS // max(attention.q.shape[1] for attention in seen))
    return sorted({round(i * (len(seen) - 1) / max(1, most - 1)) + 1 for i in range(most)})
