"""A pass of the model over a few rows of a batch of any kind, without a trace in the training."""

from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch import Tensor, nn

from regard.attention import ModuleProperties
from regard.data import TextBatch
from regard.doctor.calls import ModuleCall, record_calls
from regard.doctor.context import TrainingRun
from regard.doctor.modes import training_mode
from regard.look import evaluation_mode
from regard.prove.batches import Batch, take_rows
from regard.tasks import Term
from regard.train.device import move

ROWS, NUMBERS = 16, 2**16  # rows of arrays at most, and about as many numbers in their inputs


class ModelPass:
    """A model and a batch. ``number`` counts the examinations of a run; ``deep``: there is time for many passes."""

    def __init__(self, run: TrainingRun, batch: Batch, number: int = 0, deep: bool = True):
        assert run.model is not None
        self.run, self.model, self.number, self.deep = run, run.model, number, deep
        self.batch: Batch = move(batch, run.device)
        self.few: Batch = self._few()

    def _few(self) -> Batch:
        """The rows of the passes."""
        return first_rows(self.batch, max(2, min(ROWS, NUMBERS // max(self.batch.inputs[0].numel(), 1))))

    def mode(self, training: bool = False) -> AbstractContextManager[None]:
        """The context of a pass; in training mode, each begins with the same random numbers."""
        return training_mode(self.model, self.run.device) if training else evaluation_mode(self.model)

    def term(self, batch: Batch, training: bool = False) -> Term:
        """The first term of the loss."""
        with self.mode(training):
            return next(iter(self.run.terms(batch).values()))

    def total(self, batch: Batch, training: bool = False) -> Tensor:
        """The loss, summed over the targets."""
        return self.term(batch, training).total

    @cached_property
    def common_batch(self) -> Batch:
        """The rows of the common pass."""
        return self.few

    @cached_property
    def common(self) -> tuple[float, list[ModuleCall]]:
        """The common pass, in evaluation mode: the summed loss, and the calls of all modules."""
        totals: list[Tensor] = []
        calls = record_calls(self.model, lambda: totals.append(self.total(self.common_batch)))
        return float(totals[0]), calls

    @cached_property
    def calls(self) -> list[ModuleCall]:
        """The calls of all modules in the common pass, with the rows of the batch itself."""
        return self.common[1]

    @cached_property
    def vectors(self) -> int:
        """How many vectors a layer reads for a row: its tokens, patches or nodes."""
        outputs = (call.output for call in self.common[1] if isinstance(call.module, nn.Linear))
        return max((output.shape[:-1].numel() for output in outputs), default=1) // len(self.common_batch.inputs)

    @property
    def independent_rows(self) -> bool:
        """Whether the outputs for a row do not depend on the other rows, in evaluation mode."""
        alone = self.run.experiment.task.read_together == 1
        return alone and all(m.batch_invariant for m in self.model.modules() if isinstance(m, ModuleProperties))

    @property
    def rounding(self) -> float:
        """A difference relative to a tensor that is more than rounding in the run's number format."""
        return 1e-3 if self.run.dtype == torch.float32 else 5e-2


def first_rows(batch: Batch, rows: int, length: int | None = None) -> Batch:
    """The first rows of a batch; text is cut to ``length`` tokens."""
    batch = take_rows(batch, slice(rows))
    if length is None or batch.inputs.shape[1] <= length or not isinstance(batch, TextBatch):
        return batch
    return batch._replace(inputs=batch.inputs[:, :length], targets=batch.targets[:, :length], slots=None)
