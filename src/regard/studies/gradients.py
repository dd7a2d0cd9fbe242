"""Vanishing gradients: how much of a loss reaches what was read long before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import TextConfig
from regard.models import GPTConfig, RecurrentConfig
from regard.pages import Axes, ChartSection, Series
from regard.studies.machine import machine
from regard.studies.page import Study
from regard.studies.short import train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

LENGTH, STEPS, WINDOWS = 128, 400, 32
NEAR, FAR = 1, 100  # distances that the words compare


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How far back does a loss reach? The gradient at each hidden state against its distance from the loss.

    regard study gradients

    One layer each of a vanilla RNN, LSTM and GRU, and a Transformer of two, 128 wide, on the plays: |dL/dh_t| of the
    loss at the last of 128 characters, before training and after 400 updates. A minute on 2 cores.
    """
    steps = max(1, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(LENGTH)
    sizes: dict[str, Any] = {"vocabulary": data.vocabulary, "context": LENGTH, "width": 128}
    models = {
        "RNN": RecurrentConfig(cell="rnn", layers=1, residual=False, **sizes),
        "LSTM": RecurrentConfig(cell="lstm", layers=1, residual=False, **sizes),
        "GRU": RecurrentConfig(cell="gru", layers=1, residual=False, **sizes),
        "Transformer": GPTConfig(layers=2, heads=4, zero_init=False, **sizes),
    }
    batch = next(iter(data.validation_batches(WINDOWS)))
    before: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    for name, config in models.items():
        torch.manual_seed(seed)
        before[name] = reach(config.build(), batch)
        train = TrainConfig(
            steps=steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.05), device="cpu"
        )
        kept: list[Any] = []
        loss = train_shortly(replace(Experiment(), model=config, data=data_config, train=train, seed=seed), data, kept)
        after[name] = reach(kept[0], batch) if kept else [0.0] * LENGTH
        say(f"{name}: loss {loss:.3f} after {steps} updates; {ratio(after[name]):.1e} of the gradient left at {FAR}")
    charts = [
        chart("Before training", before, "with fresh weights"),
        chart(f"After {steps} updates", after, "trained"),
    ]
    return Study(
        "gradients",
        "How far back does a loss reach?",
        words(before, after),
        charts,
        {"distance": list(range(LENGTH)), "before": before, "after": after},
        f"width 128, {LENGTH} characters, {WINDOWS} held-out windows, seed {seed}, {machine(torch.device('cpu'))}",
    )


def reach(model: Any, batch: Any) -> list[float]:
    """|dL/dh_t| by distance, 0 first: L is the loss at the last place of each window, h_t the state after place t."""
    model.double().eval()  # float32 would round the smallest to zero
    states, features = hidden_states(model, batch.inputs)
    loss = F.cross_entropy(model.head(features), batch.targets[:, -1], reduction="sum")
    parts = [part for state in states for part in state]
    slopes = iter(torch.autograd.grad(loss, parts))
    # [B, 1 or N, C] each, C twice as wide where there is a cell
    norms = [torch.cat([next(slopes) for _ in state], dim=-1).norm(dim=-1) for state in states]
    return torch.cat(norms, dim=1).mean(0).flip(0).tolist()


def hidden_states(model: Any, tokens: Tensor) -> tuple[list[tuple[Tensor, ...]], Tensor]:
    """The states that gradients are taken at, and the features at the last place.

    Of a recurrent model, what it remembers after each token, LSTM's cell included: all that the future knows of the
    past. Of a Transformer, the output of its first block at every place, which is what later tokens can still look at.
    """
    if hasattr(model.blocks[0], "recurrent"):
        (block,) = model.blocks
        x, states = model.embed(tokens), []
        state = block.recurrent.start(len(tokens))
        for t in range(tokens.shape[1]):
            out, state = block(x[:, t : t + 1], state)
            states.append(tuple(part for part in state if part is not None))
        return [*states[:-1], (out,)], model.norm(out)[:, 0]  # the last state is asked for by its output alone
    found: list[Tensor] = []
    with model.blocks[0].register_forward_hook(lambda *call: found.append(call[-1])):
        features = model.features(tokens)
    return [(found[0],)], features[:, -1]


def chart(title: str, curves: dict[str, list[float]], how: str) -> ChartSection:
    """Curves on a logarithmic axis."""
    series = [
        Series(name, [(float(d), max(y, 1e-60)) for d, y in enumerate(curve)], i)
        for i, (name, curve) in enumerate(curves.items())
    ]
    places = [0, 1, 2, 5, 10, 20, 50, FAR, LENGTH - 1]
    return ChartSection(
        title,
        f"The mean norm of the gradient at a hidden state, {how}, against how many characters lie between it and the "
        "loss. The axis is logarithmic: a straight line down is a loss by the same factor at every step.",
        series,
        Axes("distance from the loss, characters", "|dL/dh|", log=True, x_low=0),
        ("distance", *curves),
        [(str(d), *(f"{curve[d]:.2e}" for curve in curves.values())) for d in places],
    )


def ratio(curve: list[float]) -> float:
    """What is left of the gradient at a distance."""
    return curve[FAR] / curve[NEAR] if curve[NEAR] else 0.0


def words(before: dict[str, list[float]], after: dict[str, list[float]]) -> list[str]:
    """What is left far away."""
    order = sorted(after, key=lambda name: ratio(after[name]))
    parts = [f"{name} {ratio(after[name]):.1e} ({ratio(before[name]):.1e} before training)" for name in order]
    least, most = order[0], order[-1]
    many = ratio(after[most]) / ratio(after[least]) if ratio(after[least]) else float("inf")
    return [
        f"Of the gradient at a distance of {NEAR} character, this share is left at {FAR}: {'; '.join(parts)}.",
        f"What was read {FAR} characters ago weighs {many:.1e} times as much in the {most} as in the {least}."
        if many < float("inf")
        else f"In the {least} nothing at all of it is left.",
    ]
