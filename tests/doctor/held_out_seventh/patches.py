"""The faults that are no option: each function changes classes of the product in this process."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def windows_from_whole_text() -> None:
    """Draw training windows from all tokens, the held-out ones included."""
    from regard.data.texts import text

    def offsets(self: Any, step: int, *, seed: int, count: int) -> Any:
        return text._draws(seed, step, count, below=len(self) - self.context)

    text.TextData.offsets = offsets  # type: ignore[method-assign]


def token_ids_in_one_byte() -> None:
    """Keep the low byte of each token id."""
    from regard.data.texts.text import TextData

    real = TextData._batch

    def batch(self: Any, inputs: Any, targets: Any) -> Any:
        return real(self, inputs % 256, np.where(targets < 0, targets, targets % 256))

    TextData._batch = batch  # type: ignore[method-assign]


def validation_not_normalized() -> None:
    """Scale held-out images to 0 ... 1; training images are scaled to -1 ... 1."""
    from regard.data.images.data import ImageData

    real = ImageData.part_batch

    def part_batch(self: Any, part: Any, numbers: Any, *, counts: bool = True) -> Any:
        batch = real(self, part, numbers, counts=counts)
        return batch if part == "train" else batch._replace(inputs=(batch.inputs + 1) / 2)

    ImageData.part_batch = part_batch  # type: ignore[method-assign]


def sorted_by_class() -> None:
    """Every epoch in the order of the classes."""
    from regard.data.images.data import ImageData

    def shuffled(self: Any, seed: int, epoch: int) -> Any:
        return np.argsort(self.train.labels, kind="stable")

    ImageData._shuffled = shuffled  # type: ignore[method-assign]


def end_token_ignored() -> None:
    """Treat the end token as padding in the targets."""
    from regard.data.base import IGNORE_INDEX
    from regard.data.translation.pairs import PairData

    real = PairData._batch

    def batch(self: Any, part: Any, numbers: Any) -> Any:
        made = real(self, part, numbers)
        return made._replace(targets=made.targets.masked_fill(made.targets == self.specials.end, IGNORE_INDEX))

    PairData._batch = batch  # type: ignore[method-assign]


def class_zero_ignored() -> None:
    """Leave class 0 out of the loss, as if it were padding."""
    from regard.tasks.images import ImageClassificationTask

    def loss(self: Any, scores: Any, batch: Any) -> Any:
        return F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten(), ignore_index=0, reduction="sum")

    ImageClassificationTask._loss = loss  # type: ignore[method-assign]


def softmax_over_batch() -> None:
    """Normalize the scores over the rows of the batch."""
    from regard.tasks.images import ImageClassificationTask

    def loss(self: Any, scores: Any, batch: Any) -> Any:
        logs = scores.flatten(0, 1).log_softmax(0)
        return F.nll_loss(logs, batch.targets.flatten(), ignore_index=-1, reduction="sum")

    ImageClassificationTask._loss = loss  # type: ignore[method-assign]


def _after_engine(change: Any) -> None:
    """Call ``change(engine)`` whenever an engine was built."""
    from regard.train.engine import Engine

    real = Engine.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        change(self)

    Engine.__init__ = init  # type: ignore[method-assign]


def head_replaced_after_optimizer() -> None:
    """Give the head a new parameter when the optimizer has the old one."""

    def change(engine: Any) -> None:
        head = engine.model.unembed
        head.weight = nn.Parameter(head.weight.detach().clone())

    _after_engine(change)


def schedule_steps_per_micro_batch() -> None:
    """Advance the schedule once for each of the four micro-batches."""
    from regard.train.schedule import TrapezoidScheduleConfig

    real = TrapezoidScheduleConfig.factor
    TrapezoidScheduleConfig.factor = lambda self, step, steps: real(self, 4 * step, steps)  # type: ignore[method-assign]


def keys_detached() -> None:
    """Cut the keys from the graph."""
    from regard.nn.attention import SelfAttention

    real = SelfAttention._attend

    def attend(self: Any, q: Any, k: Any, v: Any, context: Any) -> Any:
        return real(self, q, k.detach(), v, context)

    SelfAttention._attend = attend  # type: ignore[method-assign]


def norm_over_time() -> None:
    """Take the mean square of the first norm of the last block over tokens and channels."""
    from regard.models.gpt import GPT
    from regard.nn.norm import RMSNorm

    class SequenceNorm(RMSNorm):
        """x / root of the mean square over the last two axes."""

        def forward(self, x: Any) -> Any:
            return x * (x.square().mean((-2, -1), keepdim=True) + self.eps).rsqrt() * self.gain

    real = GPT.__init__

    def init(self: Any, config: Any) -> None:
        real(self, config)
        self.blocks.layers[-1].norm_attention.__class__ = SequenceNorm

    GPT.__init__ = init  # type: ignore[method-assign]


def rotary_on_queries_only() -> None:
    """Rotate the queries and leave the keys as they are."""
    from regard.nn.attention import SelfAttention

    def split(self: Any, heads: Any, rotation: Any) -> Any:
        both, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = self.norm_qk(both).split([self.heads, self.kv_heads], dim=2)
        return rotation.apply(q), k, v

    SelfAttention._split = split  # type: ignore[method-assign]


def recurrent_matrices_of_deviation_1() -> None:
    """Draw the matrices of the cells with the deviation 1."""
    from regard.models.recurrent import RecurrentModel

    real = RecurrentModel.reset

    def reset(self: Any) -> None:
        real(self)
        for name, parameter in self.blocks.named_parameters():
            if parameter.ndim == 2 and "cells" in name:
                nn.init.normal_(parameter, std=1.0)

    RecurrentModel.reset = reset  # type: ignore[method-assign]


def average_of_weights_lags() -> None:
    """Evaluate a moving average of the weights, 0.9999 of it kept in each step."""
    from regard.train import loop
    from regard.train.engine import Engine

    def change(engine: Any) -> None:
        engine.average = deepcopy(engine.model)

    _after_engine(change)
    real_update, real_evaluate = Engine.update, loop.evaluate

    def update(self: Any) -> Any:
        done = real_update(self)
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                kept.lerp_(new, 1e-4)
        return done

    def evaluate(engine: Any, *batches: Any) -> Any:
        trained, engine.model = engine.model, engine.average
        try:
            return real_evaluate(engine, *batches)
        finally:
            engine.model = trained

    Engine.update, loop.evaluate = update, evaluate  # type: ignore[method-assign]


def weights_in_bfloat16() -> None:
    """Build the model in bfloat16."""
    from regard.models.gpt import GPTConfig

    real = GPTConfig.make
    GPTConfig.make = lambda self: real(self).bfloat16()  # type: ignore[method-assign]


def data_restarts_on_resume() -> None:
    """Restore the step and forget the position in the data."""
    from regard.train import checkpoint

    real = checkpoint.restore_progress

    def restore_progress(progress: Any, saved: Any) -> None:
        real(progress, saved)
        progress.position = 0

    checkpoint.restore_progress = restore_progress


def adapters_both_zero() -> None:
    """Set both factors of each adapter to zero."""
    import regard.models  # noqa: F401 (first: nn.lora and nn.fused import each other)
    from regard.nn.lora import LowRankAdapter

    real = LowRankAdapter.adapt

    def adapt(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        nn.init.zeros_(self.lora_a)

    LowRankAdapter.adapt = adapt  # type: ignore[method-assign]
