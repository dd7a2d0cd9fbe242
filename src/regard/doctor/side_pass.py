"""Side passes: the model runs on a part of a batch in evaluation mode, without a trace in the training."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.data import PairBatch, TextBatch
from regard.doctor.context import TrainingRun
from regard.look import Head, attentions, evaluation_mode, heads
from regard.prove.batches import Batch, take_rows
from regard.prove.comparison import Hook, Outputs, forward_hooks, record_outputs
from regard.train.device import move

#: Tokens of a pass; rows and tokens per row where the cost grows with the square of the length.
TOKENS, ROWS, LENGTH = 2048, 2, 256
#: A change of an output, relative to its size, that is more than rounding in float32.
MOVED = 1e-4
SHORTEST = 4  # tokens of a row in which something can be changed

Layer = TypeVar("Layer", bound=nn.Module)
Measured = TypeVar("Measured")


class SidePass:
    """A model and a batch. ``number`` counts the examinations of a run; ``deep``: there is time for many passes."""

    def __init__(self, run: TrainingRun, batch: Batch, number: int = 0, deep: bool = True):
        assert run.model is not None
        self.deep = deep
        self.run, self.model, self.batch, self.number = run, run.model, move(batch, run.device), number
        self.few: Batch = first_rows(self.batch, ROWS, LENGTH)
        self.with_token_changed = cache(self._with_token_changed)

    def forward(self, batch: Batch) -> None:
        """Run the model and the task on a batch."""
        with evaluation_mode(self.model):
            self.run.terms(batch)

    def total(self, batch: Batch) -> Tensor:
        """The loss, summed over the targets, in float32. Call it in `evaluation_mode`."""
        terms = self.run.task.terms(self.model, batch)
        return next(iter(terms.values())).total

    def measure(
        self, layers: Mapping[str, Layer], function: Callable[[Layer, tuple[Any, ...], Any], Measured]
    ) -> dict[str, list[Measured]]:
        """``function(layer, inputs, output)`` of every call of the layers, by name, for 2,048 tokens of the batch."""
        found: dict[str, list[Measured]] = {name: [] for name in layers}

        def record(name: str) -> Hook:
            return lambda layer, inputs, output: found[name].append(function(layer, inputs, output))

        if layers:
            with forward_hooks((layer, record(name)) for name, layer in layers.items()):
                self.forward(first_rows(self.batch, max(1, TOKENS // self.batch.inputs.shape[1])))
        return found

    @cached_property
    def heads(self) -> dict[str, list[Head]]:
        """Statistics of every attention head, by the name of its layer."""
        layers: dict[str, list[Head]] = {}
        for head in heads(attentions(self.model, lambda: self.run.terms(self.few))):
            layers.setdefault(head.name, []).append(head)
        return layers

    def outputs(self, batch: Batch, shape: tuple[int, ...], only: str | None = None) -> Outputs:
        """The outputs per token of every module, or of one, for tokens of ``shape`` [B, N]."""
        return record_outputs(self.model, lambda: self.forward(batch), shape, only)

    @property
    def tokens(self) -> Tensor:
        """The tokens [B, N] in which `with_token_changed` changes one."""
        return self.few.inputs

    @cached_property
    def plain(self) -> Outputs:
        """The outputs for the unchanged tokens."""
        return self.outputs(self.few, self.tokens.shape)

    @property
    def positions(self) -> Iterator[int]:
        """Where a token is changed: the last position, and another one in every examination."""
        length = self.tokens.shape[1]
        if length >= SHORTEST:
            yield length - 1
            yield length // 2 + self.number * 7 % (length - length // 2)

    def _with_token_changed(self, position: int) -> Outputs:
        """The outputs with another token at ``position``."""
        other = self.tokens.clone()
        other[:, position] = (other[:, position] + 1) % self.run.vocabulary
        return self.outputs(self.few._replace(inputs=other), self.tokens.shape)

    @cached_property
    def source_pair(self) -> PairBatch | None:
        """The batch, if it has a source in which something can be changed."""
        return self.few if isinstance(self.few, PairBatch) and self.few.source.shape[1] >= SHORTEST else None

    def first_attention(self, plain: Outputs, changed: Outputs) -> str:
        """The first attention whose output differs between two passes; "" if none does."""
        names = {name for name, _ in self.model.mechanisms()}
        pairs = zip(plain, changed, strict=False)
        return next((name for (name, one), (_, other) in pairs if name in names and not one.equal(other)), "")


def first_rows(batch: Batch, rows: int, length: int | None = None) -> Batch:
    """The first rows of a batch; text is cut to ``length`` tokens."""
    batch = take_rows(batch, slice(rows))
    if length is None or batch.inputs.shape[1] <= length or not isinstance(batch, TextBatch):
        return batch
    return batch._replace(inputs=batch.inputs[:, :length], targets=batch.targets[:, :length], slots=None)
