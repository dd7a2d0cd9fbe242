"""Side passes: the model runs on a part of a batch, without a trace in the training.

An examination makes one pass for all checks, the common pass: over some rows, and over the first of them with other
inputs, which the checks declare beforehand (`Check.inputs`). All calls of modules are recorded.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from regard.data import PairBatch
from regard.doctor.calls import ModuleCall
from regard.doctor.context import TrainingRun
from regard.doctor.model_pass import ModelPass, first_rows
from regard.look import Attention, Head, attentions, heads
from regard.prove.batches import Batch, take_rows
from regard.prove.comparison import Outputs, per_token, record_outputs, relative_difference

#: Tokens of the common pass whose inputs are not changed; rows whose inputs are, if they are short, and tokens of each.
TOKENS, ROWS, LENGTH = 512, 2, 128
#: A change of an output, relative to its size, that is more than rounding in float32.
MOVED = 1e-4
SHORTEST = 4  # tokens of a row in which something can be changed


class SidePass(ModelPass):
    """A pass over tokens, some of which are changed."""

    def __init__(self, run: TrainingRun, batch: Batch, number: int = 0, deep: bool = True):
        super().__init__(run, batch, number, deep)
        self._changed: list[Tensor] = []

    def _few(self) -> Batch:
        return first_rows(self.batch, max(1, min(ROWS, 2 * LENGTH // self.batch.inputs.shape[1])), LENGTH)

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        """Declare other inputs of the shape of ``tokens`` for the common pass."""
        self._changed += inputs

    @cached_property
    def common_batch(self) -> Batch:
        """The rows of the common pass: first those with their own inputs, then those with others."""
        rows, length = self.tokens.shape
        own = first_rows(self.batch, max(rows, TOKENS // length), LENGTH)
        batch = take_rows(own, [*range(len(own.inputs)), *list(range(rows)) * len(self._changed)])
        return batch._replace(inputs=torch.cat([own.inputs, *self._changed]))

    @cached_property
    def calls(self) -> list[ModuleCall]:
        """The calls of all modules in the common pass, with the rows whose inputs are their own."""
        count = len(self.common_batch.inputs)
        own = count - len(self._changed) * len(self.tokens)

        def rows(x: Tensor) -> Tensor:  # it has one entry, or several in a row, for each row of the batch
            return x[: len(x) * own // count] if x.ndim and len(x) % count == 0 else x

        return [c._replace(inputs=tuple(map(rows, c.inputs)), output=rows(c.output)) for c in self.common[1]]

    def with_inputs(self, tokens: Tensor) -> Outputs:
        """The outputs per token for other inputs [B, N]: from the common pass if they were declared."""
        rows, (count, length) = len(self.tokens), self.common_batch.inputs.shape
        starts = [0, *range(count - len(self._changed) * rows, count, rows)]
        for start, inputs in zip(starts, [self.tokens, *self._changed], strict=True):
            if torch.equal(inputs, tokens):
                found = ((call.name, per_token(call.output, count, length)) for call in self.common[1])
                return [(name, x[start : start + rows]) for name, x in found if x is not None]
        return self.outputs(self.few._replace(inputs=tokens), tokens.shape)

    @cached_property
    def attentions(self) -> list[Attention]:
        """Queries and keys of every attention whose weights can be observed and follow from scores."""
        return [one for one in attentions(self.model, lambda: self.run.terms(self.few)) if not one.mechanism.recurrent]

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

    def outputs(self, batch: Batch, shape: tuple[int, ...], only: str | None = None, training: bool = False) -> Outputs:
        """The outputs per token of every module, or of one, for tokens of ``shape`` [B, N]."""
        return record_outputs(self.model, lambda: self.total(batch, training), shape, only)

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
