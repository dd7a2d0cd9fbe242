"""Side passes: the model runs on a part of a batch, without a trace in the training.

An examination makes one pass for all checks: over some rows, and over the same rows with other inputs. The checks
declare beforehand which inputs and which measurements of layers they need (`Check.inputs`, `Check.measures`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import PairBatch, TextBatch
from regard.doctor.context import TrainingRun
from regard.doctor.modes import training_mode
from regard.look import Attention, Head, attentions, evaluation_mode, heads
from regard.prove.batches import Batch, take_rows
from regard.prove.comparison import Hook, Outputs, forward_hooks, record_outputs, relative_difference
from regard.train.device import move

#: Tokens of measured layers; rows whose inputs are changed, if they are short, and tokens of each.
TOKENS, ROWS, LENGTH = 512, 2, 128
#: A change of an output, relative to its size, that is more than rounding in float32.
MOVED = 1e-4
SHORTEST = 4  # tokens of a row in which something can be changed


class Measure(NamedTuple):
    """``function(layer, inputs, output)`` of every call of the layers that ``select(name, layer)`` chooses."""

    select: Callable[[str, nn.Module], bool]
    function: Callable[[Any, tuple[Any, ...], Any], Any]


class SidePass:
    """A model and a batch. ``number`` counts the examinations of a run; ``deep``: there is time for many passes."""

    def __init__(self, run: TrainingRun, batch: Batch, number: int = 0, deep: bool = True):
        assert run.model is not None
        self.deep = deep
        self.run, self.model, self.batch, self.number = run, run.model, move(batch, run.device), number
        length = self.batch.inputs.shape[1]
        self.few: Batch = first_rows(self.batch, max(1, min(ROWS, 2 * LENGTH // length)), LENGTH)
        self._measures: dict[Measure, dict[str, list[Any]]] = {}
        self._inputs: list[Tensor] = [self.few.inputs]

    def prepare(self, inputs: Iterable[Tensor], measures: Iterable[Measure]) -> None:
        """Declare what the common pass must record: other inputs of the shape of ``tokens``, and measurements."""
        self._inputs += inputs
        self._measures |= {measure: {} for measure in measures}

    def mode(self, training: bool = False) -> AbstractContextManager[None]:
        """The context of a pass; in training mode, each begins with the same random numbers."""
        return training_mode(self.model, self.run.device) if training else evaluation_mode(self.model)

    def forward(self, batch: Batch, training: bool = False) -> None:
        """Run the model and the task on a batch."""
        with self.mode(training):
            self.run.terms(batch)

    def total(self, batch: Batch) -> Tensor:
        """The loss, summed over the targets, in float32. Call it in `evaluation_mode`."""
        terms = self.run.task.terms(self.model, batch)
        return next(iter(terms.values())).total

    @cached_property
    def _recorded(self) -> Outputs:
        """The common pass: outputs of all modules for all declared inputs, one after the other."""
        rows, length = self.tokens.shape
        more = first_rows(self.batch, max(rows, TOKENS // length), LENGTH)  # measured, not recorded
        changed = len(self._inputs) - 1
        order = [*range(rows), *list(range(rows)) * changed, *range(rows, len(more.inputs))]
        batch = take_rows(more, order)
        batch = batch._replace(inputs=torch.cat([*self._inputs, more.inputs[rows:]]))
        own = [*range(rows), *range(rows * (1 + changed), len(order))]

        def measured(name: str, measure: Measure) -> Hook:
            found = self._measures[measure].setdefault(name, [])

            def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                given = tuple(_rows(x, own, len(order)) for x in inputs)
                made = tuple(_rows(x, own, len(order)) for x in output) if isinstance(output, tuple) else output
                found.append(measure.function(layer, given, _rows(made, own, len(order))))

            return hook

        modules = [(name, module) for name, module in self.model.named_modules() if name]
        chosen = [(n, m, one) for one in self._measures for n, m in modules if one.select(n, m)]
        with forward_hooks((module, measured(name, one)) for name, module, one in chosen):
            return self.outputs(batch, batch.inputs.shape, keep=rows * (1 + changed))

    def measured(self, measure: Measure) -> dict[str, list[Any]]:
        """The results of a declared measurement by the name of the layer, without the rows with changed inputs."""
        return self._measures[measure] if self._recorded is not None else {}

    def with_inputs(self, tokens: Tensor) -> Outputs:
        """The outputs for other inputs [B, N]: from the common pass if they were declared."""
        rows = len(self.tokens)
        for number, inputs in enumerate(self._inputs):
            if torch.equal(inputs, tokens):
                return [(name, x[number * rows : (number + 1) * rows]) for name, x in self._recorded]
        return self.outputs(self.few._replace(inputs=tokens), tokens.shape)

    @cached_property
    def attentions(self) -> list[Attention]:
        """Queries and keys of every attention whose weights can be observed."""
        return attentions(self.model, lambda: self.run.terms(self.few))

    @cached_property
    def heads(self) -> dict[str, list[Head]]:
        """Statistics of every attention head, by the name of its layer."""
        layers: dict[str, list[Head]] = {}
        for head in heads(self.attentions):
            layers.setdefault(head.name, []).append(head)
        return layers

    @cached_property
    def score_sizes(self) -> dict[str, float]:
        """Of every attention: the deviation of its scores q·k/√D, if queries and keys were independent."""
        size = {one.name: one.q.float().square().mean() * one.k.float().square().mean() for one in self.attentions}
        return {name: float(product.sqrt()) for name, product in size.items()}

    def outputs(
        self,
        batch: Batch,
        shape: tuple[int, ...],
        only: str | None = None,
        training: bool = False,
        keep: int | None = None,
    ) -> Outputs:
        """The outputs per token of every module, or of one, for tokens of ``shape`` [B, N]; of the first rows only."""
        return record_outputs(self.model, lambda: self.forward(batch, training), shape, only, keep)

    @property
    def tokens(self) -> Tensor:
        """The tokens [B, N] that are changed."""
        return self.few.inputs

    @property
    def plain(self) -> Outputs:
        """The outputs for the unchanged tokens."""
        return self.with_inputs(self.tokens)

    @property
    def positions(self) -> Iterator[int]:
        """Where a token is changed: the last position, and another one in every examination."""
        length = self.tokens.shape[1]
        if length >= SHORTEST:
            yield length - 1
            yield length // 2 + self.number * 7 % (length - length // 2)

    def other_token(self, position: int) -> Tensor:
        """The tokens with another one at ``position``."""
        other = self.tokens.clone()
        other[:, position] = (other[:, position] + 1) % self.run.vocabulary
        return other

    @cached_property
    def source_pair(self) -> PairBatch | None:
        """The batch, if it has a source in which something can be changed."""
        return self.few if isinstance(self.few, PairBatch) and self.few.source.shape[1] >= SHORTEST else None

    def first_attention(self, plain: Outputs, changed: Outputs) -> str:
        """The first attention whose output differs between two passes; "" if none does."""
        names = {name for name, _ in self.model.mechanisms()}
        pairs = zip(plain, changed, strict=False)
        return next((n for (n, one), (_, other) in pairs if n in names and relative_difference(one, other) > MOVED), "")


def _rows(x: Any, rows: list[int], count: int) -> Any:
    """Those rows of a tensor that has one entry, or several in a row, for each row of a batch."""
    if not isinstance(x, Tensor) or not x.ndim or len(x) % count:
        return x
    return x.unflatten(0, (count, -1))[rows].flatten(0, 1)


def first_rows(batch: Batch, rows: int, length: int | None = None) -> Batch:
    """The first rows of a batch; text is cut to ``length`` tokens."""
    batch = take_rows(batch, slice(rows))
    if length is None or batch.inputs.shape[1] <= length or not isinstance(batch, TextBatch):
        return batch
    return batch._replace(inputs=batch.inputs[:, :length], targets=batch.targets[:, :length], slots=None)
