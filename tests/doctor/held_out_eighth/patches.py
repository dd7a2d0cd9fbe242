"""The faults that are neither options nor data: each function changes the product in this process."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch


def losses_summed_over_micro_batches() -> None:
    """Divide the sum of each micro-batch by its own count, and not by that of the whole update."""
    from regard.train import engine

    real = engine.shares

    def shares(terms: Any, counts: dict[str, float], micro_batches: float) -> Any:
        return real(terms, {name: count / micro_batches for name, count in counts.items()}, 1.0)

    engine.shares = shares


def vocabulary_in_another_order() -> None:
    """Number the tokens of the vocabulary in another order, as `list(set(text))` does in another process."""
    from regard.data.texts.text import TextData

    real = TextData._batch

    def batch(self: Any, inputs: Any, targets: Any) -> Any:
        order = np.random.default_rng(0).permutation(self.vocabulary)
        return real(self, order[inputs], np.where(targets < 0, targets, order[targets]))

    TextData._batch = batch  # type: ignore[method-assign]


def masked_tokens_left_visible() -> None:
    """Leave every chosen token as it is in the inputs."""
    from regard.tasks import masked

    real = masked._draws

    def draws(tokens: Any, vocabulary: int) -> Any:
        scores, kind, other = real(tokens, vocabulary)
        return scores, torch.ones_like(kind), other

    masked._draws = draws


def heads_merged_without_transpose() -> None:
    """Reshape the heads' outputs [B, H, N, D] to [B, N, H D] without exchanging the axes of heads and tokens."""
    from regard.nn.attention import SelfAttention

    def mix(self: Any, qkv: Any, context: Any) -> Any:
        heads = qkv.unflatten(-1, (-1, self.head_width))
        q, k, v = (x.transpose(1, 2) for x in self._split(heads, context.rotation))
        values = self._attend(q, k, v, context)
        return values.reshape(values.shape[0], values.shape[2], -1)

    SelfAttention.mix = mix  # type: ignore[method-assign]


def teacher_logits_of_other_rows() -> None:
    """Compare the student with the teacher's logits for the rows half a batch further."""
    from regard.train import distill

    real = distill.softened_divergence

    def softened_divergence(teacher: Any, student: Any, temperature: float) -> Any:
        return real(teacher.roll(len(teacher) // 2, 0), student, temperature)

    distill.softened_divergence = softened_divergence


def pretrained_weights_skipped() -> None:
    """Load no weight, as `load_state_dict(strict=False)` does if all names have another prefix."""
    from regard.train import pretrained

    pretrained.load_weights = lambda model, given, name: None


def balance_loss_negated() -> None:
    """Give the balance loss of the experts the wrong sign."""
    from regard.nn.experts import moe

    real = moe.balance_loss
    moe.balance_loss = lambda share, probabilities: -real(share, probabilities)


def early_stopping_keeps_the_worst() -> None:
    """Take an evaluation for the best if its score is lower."""
    from regard.parallel.tensors import weights
    from regard.train.stopping import EarlyStopping

    def evaluated(self: Any, step: int, measures: dict[str, float]) -> None:
        score = measures[f"validation_{self.engine.task.best}"]
        if self.best is not None and not score < self.best:
            self.failures += 1
            return
        self.best, self.step, self.failures = score, step, 0
        self._kept = {name: tensor.detach().clone() for name, tensor in weights(self.engine.model).items()}

    EarlyStopping.evaluated = evaluated  # type: ignore[method-assign]


def mixup_weights_swapped() -> None:
    """Give the label of each image the weight of the other one."""
    from regard.data.images.data import ImageData

    real = ImageData.train_batch

    def train_batch(self: Any, numbers: Any, random: Any) -> Any:
        batch = real(self, numbers, random)
        return batch if batch.weights is None else batch._replace(weights=1 - batch.weights)

    ImageData.train_batch = train_batch  # type: ignore[method-assign]


def class_weights_by_frequency() -> None:
    """Weigh each class by its frequency, and not by the inverse."""
    from regard.tasks.labeled import WeightedTaskConfig

    real = WeightedTaskConfig.fit

    def fit(self: Any, data: Any) -> Any:
        fitted = real(self, data)
        return replace(fitted, weights=tuple(1 / weight for weight in fitted.weights))

    WeightedTaskConfig.fit = fit  # type: ignore[method-assign]


def images_scaled_twice() -> None:
    """Scale pixels from -1 to 1 as if they were still from 0 to 255."""
    from regard.data.images import data

    real = data.to_floats
    data.to_floats = lambda images: real(real(images))


def positions_by_row() -> None:
    """Give each row of a batch one position: the axis of rows is taken for that of tokens."""
    from regard.nn.positions.position import Sinusoidal, sinusoids

    def embed(self: Any, x: Any, phase: Any) -> Any:
        rows = torch.arange(len(x), device=x.device)
        return x + sinusoids(rows, self.width, self.base).to(x.dtype)[:, None]

    Sinusoidal.embed = embed  # type: ignore[method-assign]


def source_mask_inverted() -> None:
    """Show the decoder the padding of the source, and hide its tokens."""
    from regard.attention.slots import EMPTY, Range, Slots
    from regard.models.transformer import Transformer, _cross

    def cross_plan(self: Any, queries: int, lengths: Any, places: int, *, like: Any) -> Any:
        order = torch.arange(places, device=lengths.device).expand(len(lengths), -1)
        keys = Slots(order, torch.where(order < lengths[:, None], EMPTY, 0), order)
        return _cross(self.decoder.layers[0]).mechanism.plan(self.cross_mask, Range(queries), keys, like=like)

    Transformer._cross_plan = cross_plan  # type: ignore[method-assign]


def forecasts_reshaped() -> None:
    """Read forecasts [M, H] as [H, M] without exchanging the axes."""
    from regard.models.forecast import Forecaster
    from regard.nn.instance_scale import InstanceScale

    def pooled(self: Any, x: Any, *inputs: Any) -> Any:
        (series,), head = inputs, self.config.forecast
        found = InstanceScale.of(self.rows(series)).restored(self.outputs(x))
        return found.view(len(series), head.horizon, -1, head.values)

    Forecaster.pooled = pooled  # type: ignore[method-assign]


def squared_error_broadcast() -> None:
    """Subtract targets [B, 1] from predictions [B], which gives [B, B]."""
    from regard.tasks import regression

    def measured(self: Any, model: Any, batch: Any) -> Any:
        found, further, details = regression.outputs(model, batch.arguments)
        means, deviations = (found.new_tensor(numbers) for numbers in (self.config.means, self.config.deviations))
        wanted = (batch.targets.to(found.dtype) - means) / deviations
        error = found.squeeze(1) - wanted  # [B, B]
        term = regression.Term(error.square().mean(1).sum(), batch.targets.isfinite().sum(), details=details)
        apart, targets = ((found - wanted) * deviations).double(), (wanted * deviations).double()
        sums = [batch.targets.isfinite().sum(), apart.square().sum(), apart.abs().sum()]
        sums += [targets.sum(), targets.square().sum()]
        return {"error": term, **further}, torch.stack([one.double() for one in sums])

    regression.RegressionTask.measured = measured  # type: ignore[method-assign]


def time_and_batch_swapped() -> None:
    """Run the cells over the rows of a batch: inputs [B, N, C] are given to a layer that wants [N, B, C]."""
    from regard.nn.recurrent import Recurrent

    def whole(self: Any, x: Any, state: Any) -> Any:
        out, _ = self.cells(x.transpose(0, 1))
        return out.transpose(0, 1), state

    Recurrent._whole = whole  # type: ignore[method-assign]


def circular_convolution() -> None:
    """Transform without padding, so that the end of a kernel reaches from the end of a text to its beginning."""
    from regard.attention.mechanisms import statespace

    def convolve(x: Any, kernel: Any) -> Any:
        length = x.shape[1]
        spectrum = torch.fft.rfft(x.mT, n=length) * torch.fft.rfft(kernel, n=length)
        return torch.fft.irfft(spectrum, n=length).mT

    statespace.convolve = convolve
