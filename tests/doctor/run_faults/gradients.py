"""Faults that make gradients explode or vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from regard.models import ConvolutionConfig, RecurrentConfig, TransformerConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.norm import NoNormConfig
from regard.train import MuonConfig
from regard.train.engine import Engine
from run_faults.kit import Case, Fault, Sabotage, Seen, altered, gpt, mistranslated, training, translation
from run_faults.sabotage import GRU, changed_output, mixtures, parameter

DEEP = {"context": 32, "layers": 12, "width": 32, "cycle": 4, "zero_init": False}


def recurrent_too_large(folder: Path) -> Case:
    model = RecurrentConfig(cell="rnn", context=64, layers=2, width=32)
    large = parameter("blocks.0.recurrent.cells.weight_hh_l0", lambda weight: nn.init.normal_(weight, std=0.53))
    return Case(training(folder, model=model, train={"clip": None, "steps": 40}), large)


class Amplified(Function):
    """Itself; its backward pass, written by hand, is a thousand times too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 1000


def amplified(path: str) -> Sabotage:
    """The gradient that reaches one module is a thousand times too large."""

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_hook(lambda module, given, out: Amplified.apply(out))

    return sabotage


def saturated(folder: Path) -> Case:
    model = RecurrentConfig(cell="rnn", context=32, layers=2, width=32)
    large = parameter("blocks.0.recurrent.cells.bias_ih_l0", lambda bias: bias.fill_(12.0))
    return Case(training(folder, model=model, train={"steps": 40}), large)


def detached(path: str) -> Sabotage:
    """What comes into one module is cut off from the gradient, as by a `.detach()` that was left in."""

    def cut(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0].detach(), *given[1:]

    def sabotage(engine: Engine) -> None:
        engine.model.get_submodule(path).register_forward_pre_hook(cut)

    return sabotage


def rounded(x: Tensor) -> Tensor:
    """In steps of a sixteenth, as 8-bit numbers would have it; `round` has no slope anywhere."""
    return (x * 16).round() / 16


def deep_without_shortcuts(folder: Path) -> Case:
    deep: dict[str, Any] = {"cell": "gru", "context": 32, "layers": 8, "width": 32}
    bare = RecurrentConfig(**deep, residual=False, norm=NoNormConfig())
    return Case(training(folder, model=bare), sound=training(folder, model=RecurrentConfig(**deep)))


def drawn(deviation: float) -> Sabotage:
    """All matrices of all blocks are drawn alike, however many numbers each of their outputs sums up."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        generator = torch.Generator().manual_seed(1)
        for weight in engine.model.get_submodule("blocks").parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=deviation, generator=generator)

    return sabotage


def drawn_alike(folder: Path) -> Case:
    bare = training(folder, model=ConvolutionConfig(**DEEP, norm=NoNormConfig()))
    return Case(bare, drawn(0.5), training(folder, model=ConvolutionConfig(**DEEP)))


def gradient_grows_with_depth(seen: Seen) -> bool:
    """Before clipping the gradient is huge all the time, and most of it lies in the lowest blocks and below."""
    norms = [record["grad_norm"] for record in seen.ended.run.metrics() if "grad_norm" in record]
    return min(norms) > 100 and seen.record.gradient("blocks.0.") > 100 * seen.record.gradient("blocks.11.")


def one_gate(engine: Engine) -> None:
    """The gates of a token are made to sum to one, and it has but one: whatever the router says, its gate is one."""
    for layer in mixtures(engine):
        layer.normalise = True


def untaught(seen: Seen) -> bool:
    """No router gets a gradient to speak of, and all experts do."""
    parts = [[seen.record.gradient(f"blocks.{i}.feedforward.{part}") for i in range(3)] for part in ("router", "down")]
    return max(parts[0]) < 1e-6 and min(parts[1]) > 1e-3


def never_cleared(engine: Engine) -> None:
    """Nobody sets the gradients to zero: each update adds its own to those of all before it."""
    engine.optimizer.zero_grad = lambda: None


def gradient_grows_over_time(seen: Seen) -> bool:
    """The gradient's norm rises throughout, to twenty times what it was, and the loss does not end where it could."""
    norms = [record["grad_norm"] for record in seen.ended.run.metrics() if "grad_norm" in record]
    first, second, third = (float(np.median(norms[50 * i : 50 * (i + 1)])) for i in range(3))
    return norms[0] * 20 < norms[-1] and first < second < third and min(seen.record.losses[-20:]) > 1.5


def deep_post_norm(folder: Path) -> Case:
    deep: dict[str, Any] = {"context": 64, "layers": 8, "heads": 2, "width": 32, "dropout": 0.0}
    sound = translation(folder, TransformerConfig(**deep))
    return Case(translation(folder, TransformerConfig(**deep, block=PostNormConfig())), sound=sound)


def fading(seen: Seen) -> bool:
    """On either side the lowest layer gets less than a thousandth of the gradient that the highest one gets."""
    sides = [[seen.record.gradient(f"{side}.{i}.") for i in range(8)] for side in ("encoder", "decoder")]
    return all(norms[0] < 1e-3 * norms[7] and norms == sorted(norms) for norms in sides)


FAULTS: list[Fault] = [
    Fault(
        "recurrent matrix too large",
        "exploding_gradients",
        r"blocks\.0\.recurrent",
        "A tanh network whose recurrent matrix lengthens every vector, and nothing clips the gradient.",
        recurrent_too_large,
        shows=lambda seen: seen.record.gradient("blocks.0.recurrent") > 1000,
    ),
    Fault(
        "backward pass written wrong",
        "exploding_gradients",
        r"blocks\.1",
        "A backward pass by hand forgets a division: below it gradients are a thousand times too large.",
        altered(amplified("blocks.1.feedforward")),
        shows=lambda seen: seen.record.gradient("blocks.1") > 100 * seen.record.gradient("blocks.2"),
    ),
    Fault(
        "drawn without regard to width",
        "initial_loss",
        r"\bblocks\.[0-7]\b|\bembed\b",
        "Twelve convolutions without norms, their weights all drawn alike: each makes the gradient longer.",
        drawn_alike,
        shows=gradient_grows_with_depth,
        listed=False,
    ),
    Fault(
        "gradients never cleared",
        "exploding_gradients",
        "",
        "Each update's gradient is added to those of all updates before, and nothing clips the sum.",
        altered(never_cleared, GRU, optimizer=MuonConfig(), clip=None, steps=150),
        shows=gradient_grows_over_time,
        listed=False,
    ),
    Fault(
        "saturated cells",
        "vanishing_gradients",
        r"blocks\.0\.recurrent",
        "Biases so large that every tanh of one layer is at its end, where it has no slope.",
        saturated,
        shows=lambda seen: (
            seen.record.gradient("blocks.0.recurrent") < 1e-4 * seen.record.gradient("blocks.1.recurrent")
        ),
        quick=True,
    ),
    Fault(
        "detached in the middle",
        "vanishing_gradients",
        r"blocks\.0",
        "A detach left in before the second block: the first one never gets a gradient.",
        altered(detached("blocks.1")),
        shows=lambda seen: (
            seen.record.gradient("blocks.0") == 0 and min(seen.record.gradient(f"blocks.{i}") for i in (1, 2)) > 0.01
        ),
        quick=True,
    ),
    Fault(
        "memory rounded",
        "vanishing_gradients",
        r"encoder",
        "What the encoder gives is rounded, and nothing takes the gradient past the rounding: it never learns.",
        mistranslated(changed_output("norm_source", rounded)),
        shows=lambda seen: seen.record.gradient("encoder") == 0 and seen.record.gradient("decoder") > 0.1,
        listed=False,
    ),
    Fault(
        "deep without shortcuts",
        "vanishing_gradients",
        r"blocks\.[0-6]\b",
        "Eight GRUs one on the other, with neither sums around them nor norms between them.",
        deep_without_shortcuts,
        shows=lambda seen: seen.record.gradient("blocks.0") < 0.01 * seen.record.gradient("blocks.7"),
        listed=False,
    ),
    Fault(
        "gate that is always one",
        "vanishing_gradients",
        r"blocks\.\d\.feedforward",
        "Gates are divided by their sum where each token has but one: the routers learn nothing.",
        altered(one_gate, gpt(feedforward=MoEConfig(experts=2, active=1, balance=0.0, z=0.0))),
        shows=untaught,
        listed=False,
    ),
    Fault(
        "deep with norms on the path",
        "vanishing_gradients",
        r"\b(?:encoder|decoder)\.[0-6]\b|\bembed",
        "Eight layers on either side whose norms are on the residual path: each makes the gradient shorter.",
        deep_post_norm,
        shows=fading,
        listed=False,
    ),
]
