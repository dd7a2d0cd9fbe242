"""What is done to the runs of third_runs.py: to weights, layers, batches and the optimizer's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fault_batches import changed
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Buckets, Pairs, Softmax, SoftmaxNormalizer
from regard.data import TextBatch
from regard.nn.experts.moe import MixtureOfExperts
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]


def drawn(deviation: float) -> Sabotage:
    """All matrices of all blocks are drawn alike, however many numbers each of their outputs sums up."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        generator = torch.Generator().manual_seed(1)
        for parameter in engine.model.get_submodule("blocks").parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=deviation, generator=generator)

    return sabotage


def one_gate(engine: Engine) -> None:
    """The gates of a token are made to sum to one, and it has but one: whatever the router says, its gate is one."""
    for layer in mixtures(engine):
        layer.normalise = True


def cooled(path: str, factor: float, least: float) -> Sabotage:
    """The softmax of one module gets colder with every update, down to `least`."""

    def sabotage(engine: Engine) -> None:
        module = engine.model.get_submodule(path)
        mechanism = module.get_submodule("mechanism")
        assert isinstance(mechanism, Softmax)

        def cool(module: nn.Module, given: Any) -> None:
            mechanism.normalizer = SoftmaxNormalizer(max(factor**engine.progress.step, least))

        module.register_forward_pre_hook(cool)

    return sabotage


def miscomputed(path: str, update: int) -> Sabotage:
    """In one update a faulty device gives noise for a module's output."""

    def sabotage(engine: Engine) -> None:
        def after(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:
            if not module.training or engine.progress.step != update:
                return None
            return 100 * torch.randn(out.shape, generator=torch.Generator().manual_seed(update))

        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def hidden_logits(engine: Engine) -> None:
    """The marks that no translation has are kept from it: their logits are minus infinity."""
    pad, begin, _ = engine.data.specials

    def after(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out.index_fill(-1, torch.tensor([pad, begin]), -torch.inf)

    engine.model.get_submodule("unembed").register_forward_hook(after)


def counts_parts(engine: Engine) -> None:
    """The schedule goes one step on with every micro-batch, as if each were an update."""
    optimizer: Any = engine.optimizer
    config = engine.experiment.train
    step, rates = optimizer.step, optimizer.rates

    def factor() -> float:
        return config.schedule.factor(engine.progress.position, config.steps or 0)

    optimizer.step = lambda _: step(factor())
    optimizer.rates = lambda _: rates(factor())


def sparse(path: str, strength: float) -> Sabotage:
    """A penalty on the sum of what a layer's ReLUs give, which only the gradient knows of."""

    def after(module: nn.Module, given: Any, out: Tensor) -> None:
        if out.requires_grad:
            on = out.detach() > 0
            out.register_hook(lambda gradient: gradient + strength * on)

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def upper_bits(engine: Engine) -> None:
    """Experts are chosen by a hash of the token (Roller et al. 2021), and of a byte it takes the upper three bits."""
    chosen = torch.zeros(0)

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal chosen
        chosen = 30.0 * F.one_hot(given[0].flatten() >> 5, 8)

    def led(layer: MixtureOfExperts) -> None:
        plain = layer._logits
        layer._logits = lambda rows: plain(rows) + chosen

    engine.model.get_submodule("embed").register_forward_pre_hook(keep)
    for layer in mixtures(engine):
        led(layer)


def mixtures(engine: Engine) -> list[MixtureOfExperts]:
    """All mixtures of a model."""
    return [module for module in engine.model.modules() if isinstance(module, MixtureOfExperts)]


def backwards(engine: Engine) -> None:
    """Distances have the wrong sign: what came before is taken for what comes after, which all shares a bucket."""
    bias = engine.model.get_submodule("position.shared")
    assert isinstance(bias, Buckets)

    def adjust(score: Tensor, pairs: Pairs) -> Tensor:
        apart = (pairs.k.phase - pairs.q.phase).clamp(-bias.furthest, bias.furthest) + bias.furthest
        return score + bias.table[pairs.head, bias.bucket[apart]]

    bias.adjust = adjust


def same_seed(workers: int) -> Sabotage:
    """Each worker makes a share of the rows of every batch, and all of them draw from the same generator."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        inputs, targets = (part[: len(part) // workers].repeat(workers, 1) for part in batch[:2])
        return batch._replace(inputs=inputs, targets=targets)

    return changed(change)
