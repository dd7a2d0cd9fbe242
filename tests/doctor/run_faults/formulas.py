"""Faults of classes: a replay of the run builds its model and its task from the same classes, and has them too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention import SelfAttention, SeparateConfig
from regard.nn.norm import NormConfig, RMSNorm
from regard.nn.positions.position import Rotation
from regard.recipes.digits import recipe as digits
from regard.tasks.images import ImageClassificationConfig, ImageClassificationTask
from regard.train import AdamWConfig, Optimizer
from regard.train.engine import Engine
from run_faults.kit import TRAIN, Case, Fault, Seen, gpt, training
from run_faults.sabotage import GRU


class TimeNorm(RMSNorm):
    """The mean square is taken over the tokens too."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean((-2, -1), keepdim=True) + self.eps).rsqrt() * self.gain


@dataclass(frozen=True)
class TimeNormConfig(NormConfig, kind="time-norm"):
    """RMSNorm over tokens and channels."""

    def build(self, width: int) -> nn.Module:
        return TimeNorm(width)


class BatchScale(nn.Module):
    """Divides by the mean size over the rows of the batch."""

    def __init__(self, width: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def reset(self) -> None:
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().mean(0, keepdim=True).clamp(min=1e-3) * self.gain


@dataclass(frozen=True)
class BatchScaleConfig(NormConfig, kind="batch-scale"):
    """A norm over the rows of a batch."""

    def build(self, width: int) -> nn.Module:
        return BatchScale(width)


class DetachedKeys(SelfAttention):
    """Keys get no gradient, as when they are read from a cache."""

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        q, k, v = super()._split(heads, rotation)
        return q, k.detach(), v


@dataclass(frozen=True)
class DetachedKeysConfig(SeparateConfig, kind="detached-keys"):
    """The usual projection without the gradient of the keys."""

    self_attention: ClassVar[type[SelfAttention]] = DetachedKeys

    def build(self, sizes: Any, mechanism: Any) -> SelfAttention:
        return DetachedKeys(self._own(sizes), mechanism)


@dataclass(frozen=True)
class ExchangedBetasConfig(AdamWConfig, kind="exchanged-betas"):
    """AdamW with the decay rates of the two moments exchanged."""

    def build(self, model: Any, rates: Any = None) -> Any:
        return AdamWConfig(self.lr, (self.betas[1], self.betas[0]), self.eps, self.weight_decay).build(model, rates)


class Uncorrected(torch.optim.AdamW):
    """AdamW without the correction of the bias of its moments."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0])
                state["exp_avg_sq"].lerp_(p.grad.square(), 1 - group["betas"][1])
                p.sub_(group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"]))


@dataclass(frozen=True)
class UncorrectedConfig(AdamWConfig, kind="uncorrected-adamw"):
    """AdamW by another class."""

    def build(self, model: Any, rates: Any = None) -> Any:
        trained = [p for p in model.parameters() if p.requires_grad]
        return Optimizer(model, [Uncorrected(trained, self.lr, self.betas, self.eps, self.weight_decay)])


@dataclass(frozen=True)
class WithoutZerosConfig(ImageClassificationConfig, kind="without-zeros"):
    """Classes of images, but class 0 counts as padding."""

    def build(self) -> ImageClassificationTask:
        return WithoutZeros(self)


class WithoutZeros(ImageClassificationTask):
    """ignore_index = 0."""

    def _losses(self, kind: Callable[..., Tensor], scores: Tensor, targets: Tensor, **options: float) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="none")


def built_with(**changes: Any) -> Callable[[Path], Case]:
    """The small training with a part of the model exchanged."""
    return lambda folder: Case(training(folder, model=gpt(**changes)), sound=training(folder))


def optimized(config: type[AdamWConfig], **settings: Any) -> Callable[[Path], Case]:
    """The small training with another optimizer."""
    made = replace(TRAIN, steps=30, evaluate_every=30).__dict__
    return lambda folder: Case(
        training(folder, train={**made, "optimizer": config(lr=5e-3, **settings)}),
        sound=training(folder, train={**made, "optimizer": AdamWConfig(lr=5e-3, **settings)}),
    )


def unlearned_zeros(folder: Path) -> Case:
    sound = digits()
    model = replace(cast(Any, sound.model), layers=1, width=32)
    sound = replace(sound, model=model, train=replace(TRAIN, steps=40, log_every=1), seed=3)
    return Case(replace(sound, task=WithoutZerosConfig()), sound=sound)


def saturated(folder: Path) -> Case:
    def sabotage(engine: Engine) -> None:
        for name, parameter in engine.model.named_parameters():
            if "weight_hh" in name or "weight_ih" in name:
                nn.init.normal_(parameter, std=8.0)

    return Case(training(folder, model=GRU), sabotage)


def without_gradient(seen: Seen) -> bool:
    """The rows of the keys have no gradient, those of the queries do."""
    weight = seen.model.blocks[0].attention.qkv.weight
    loss = seen.ended.engine.task.terms(seen.model, seen.batch())["next_token"].total
    (gradient,) = torch.autograd.grad(loss, weight)
    queries, keys, _ = gradient.chunk(3)
    return bool(queries.any()) and not bool(keys.any())


def zeros_unlearned(seen: Seen) -> bool:
    """Images of a zero have no loss, others do."""
    batch = seen.batch()
    task, logits = seen.ended.engine.task, seen.model(*batch.arguments)
    losses = cast(Any, task)._losses(F.cross_entropy, logits[:, None], batch.targets)
    zeros = batch.targets.flatten() == 0
    return not bool(losses[zeros].any()) and bool(losses[~zeros].all())


def mixed(seen: Seen) -> bool:
    """The outputs for a row depend on the other rows."""
    tokens = seen.batch().inputs
    with torch.no_grad():
        return not torch.allclose(seen.model(tokens)[0], seen.model(tokens[:1])[0], atol=1e-3)


def at_the_ends(seen: Seen) -> bool:
    """Most states are within a thousandth of -1 or 1."""
    name = next(n for n, module in seen.model.named_modules() if isinstance(module, nn.RNNBase))
    kept: list[Tensor] = []
    hook = seen.model.get_submodule(name).register_forward_hook(lambda _, given, out: kept.append(out[0]))
    with torch.no_grad():
        seen.model(seen.batch().inputs)
    hook.remove()
    return float((kept[0].abs() > 0.999).float().mean()) > 0.4


FAULTS = [
    Fault(
        "norm over the tokens",
        "wrong_formula",
        r"blocks\.\d.*norm_",
        "The class of the norm takes its mean over the tokens too.",
        built_with(norm=TimeNormConfig()),
        lambda seen: isinstance(seen.model.blocks[0].norm_attention, TimeNorm),
        listed=False,
        quick=True,
    ),
    Fault(
        "norm over the rows",
        "mixed_rows",
        r"blocks\.0\.norm_attention",
        "A norm divides by a mean over the rows of the batch.",
        built_with(norm=BatchScaleConfig()),
        mixed,
        listed=False,
    ),
    Fault(
        "keys without a gradient",
        "missing_component",
        r"blocks\.\d\.attention\.qkv\.weight, matrix 2 of 3",
        "The class of attention detaches its keys.",
        built_with(projection=DetachedKeysConfig()),
        without_gradient,
        listed=False,
        quick=True,
    ),
    Fault(
        "class 0 counts as padding",
        "class_loss",
        "the task, class 0",
        "The task's cross entropy ignores the targets of class 0.",
        unlearned_zeros,
        zeros_unlearned,
        listed=False,
        quick=True,
    ),
    Fault(
        "betas exchanged",
        "optimizer_differs",
        r"train\.optimizer\.betas",
        "The optimizer is built with the two decay rates exchanged.",
        optimized(ExchangedBetasConfig),
        lambda seen: seen.ended.engine.optimizer.groups[0]["betas"] == (0.95, 0.9),
        listed=False,
        quick=True,
    ),
    Fault(
        "moments without correction",
        "optimizer_differs",
        r"train\.optimizer",
        "The optimizer does not correct the bias of its moments, so its first steps have another size.",
        optimized(UncorrectedConfig, weight_decay=0.0),
        lambda seen: isinstance(seen.ended.engine.optimizer.parts[0], Uncorrected),
        listed=False,
        quick=True,
    ),
    Fault(
        "recurrent weights are too large",
        "saturated_units",
        r"recurrent|cells",
        "The matrices of the recurrent layers begin with a deviation of 8.",
        saturated,
        at_the_ends,
        listed=False,
    ),
]
