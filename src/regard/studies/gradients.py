"""Vanishing gradients: the gradient of a loss at hidden states many tokens before."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import TextBatch, TextConfig
from regard.models import GPTConfig, RecurrentConfig
from regard.models.base import LanguageModel
from regard.models.recurrent import RecurrentBlock, RecurrentModel
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

LENGTH, STEPS, WINDOWS = 128, 400, 32
NEAR, FAR = 1, 100  # distances that the words compare


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How far back do gradients reach? The gradient norm at each hidden state by its distance from the loss.

    regard study gradients

    One layer each of a vanilla RNN, LSTM and GRU, and a Transformer with two layers, of width 128, on Shakespeare:
    |dL/dh_t| of the loss at the last of 128 characters, before training and after 400 steps. A minute on 2 cores.
    """
    steps = max(1, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(LENGTH)
    recurrent = RecurrentConfig(vocabulary=data.vocabulary, context=LENGTH, width=128, layers=1, residual=False)
    models = {
        "RNN": replace(recurrent, cell="rnn"),
        "LSTM": replace(recurrent, cell="lstm"),
        "GRU": replace(recurrent, cell="gru"),
        "Transformer": GPTConfig(
            vocabulary=data.vocabulary, context=LENGTH, width=128, layers=2, heads=4, zero_init=False
        ),
    }
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.05), device="cpu")
    batch = next(iter(data.validation_batches(WINDOWS)))
    before: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    for name, config in models.items():
        torch.manual_seed(seed)
        before[name] = gradient_norms(config.build(), batch)
        run = train_shortly(Experiment(config, data_config, train=train, seed=seed), data)
        after[name] = gradient_norms(run.model, batch) if math.isfinite(run.loss) else [0.0] * LENGTH
        say(f"{name}: loss {run.loss:.3f} after {steps} steps; {ratio(after[name]):.1e} of the gradient left at {FAR}")
    return Study(
        words(before, after),
        [chart("Before training", before, "at initialization"), chart(f"After {steps} steps", after, "after training")],
        {"distance": list(range(LENGTH)), "before": before, "after": after},
        f"width 128, {LENGTH} characters, {WINDOWS} held-out windows, seed {seed}, {machine()}",
    )


def gradient_norms(model: LanguageModel, batch: TextBatch) -> list[float]:
    """|dL/dh_t| by distance, 0 first: L is the loss at a window's last position, h_t the state at position t."""
    model.double().eval()  # in float32 the smallest would underflow
    states, features = hidden_states(model, batch.inputs)
    loss = F.cross_entropy(model.head(features), batch.targets[:, -1], reduction="sum")
    parts = [part for state in states for part in state]
    slopes = iter(torch.autograd.grad(loss, parts))
    # [B, 1 or N, C] each, C twice as wide where there is a cell
    norms = [torch.cat([next(slopes) for _ in state], dim=-1).norm(dim=-1) for state in states]
    return torch.cat(norms, dim=1).mean(0).flip(0).tolist()


def hidden_states(model: LanguageModel, tokens: Tensor) -> tuple[list[tuple[Tensor, ...]], Tensor]:
    """The hidden states h_t, and the features at the last position.

    For a recurrent model, its state after each token, including the cell of an LSTM. For a Transformer, the output of
    its first block at every position, which later tokens attend to.
    """
    block = model.blocks[0]
    if isinstance(model, RecurrentModel):
        assert isinstance(block, RecurrentBlock)
        x, states = model.embed(tokens), []
        state = block.recurrent.start(len(tokens))
        for t in range(tokens.shape[1]):
            out, state = block(x[:, t : t + 1], state)
            states.append(tuple(part for part in state if part is not None))
        # The loss depends on the last state through its output alone.
        return [*states[:-1], (out,)], model.norm(out)[:, 0]
    outputs: list[Tensor] = []
    with block.register_forward_hook(lambda *call: outputs.append(call[-1])):
        features = model.features(tokens)
    return [(outputs[0],)], features[:, -1]


def chart(title: str, curves: dict[str, list[float]], how: str) -> ChartSection:
    """Curves on a logarithmic axis."""
    points = {name: [(float(d), max(y, 1e-60)) for d, y in enumerate(curve)] for name, curve in curves.items()}
    return ChartSection(
        title,
        f"The mean gradient norm at a hidden state, {how}, by its distance from the loss in characters. The axis is "
        "logarithmic: a straight falling line is a decay by the same factor at every step.",
        lines(points, marks=False),
        Axes("distance from the loss, characters", "|dL/dh|", log=True, x_low=0),
    )


def ratio(curve: list[float]) -> float:
    """The gradient at a large distance as a share of that at a small one."""
    return curve[FAR] / curve[NEAR] if curve[NEAR] else 0.0


def words(before: dict[str, list[float]], after: dict[str, list[float]]) -> list[str]:
    """The shares in sentences."""
    order = sorted(after, key=lambda name: ratio(after[name]))
    parts = [f"{name} {ratio(after[name]):.1e} ({ratio(before[name]):.1e} before training)" for name in order]
    least, most = order[0], order[-1]
    many = ratio(after[most]) / ratio(after[least]) if ratio(after[least]) else float("inf")
    return [
        f"At a distance of {FAR} characters, this share of the gradient at {NEAR} is left: {'; '.join(parts)}.",
        f"The share at {FAR} characters is {many:.1e} times as large in the {most} as in the {least}."
        if many < float("inf")
        else f"In the {least} the gradient at {FAR} characters is zero.",
    ]
