"""Sequential against parallel models: the time of a training step by sequence length."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from regard.models import ConvolutionConfig, GPTConfig, RecurrentConfig
from regard.models.base import LanguageModel
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.train.device import synchronize

LENGTHS, WIDTH, TOKENS = (32, 64, 128, 256, 512, 1024, 2048), 128, 4096
VOCABULARY = 65


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How much does parallelism over tokens save? The time of a training step by sequence length.

    regard study parallel

    Forward and backward over 4,096 tokens, as many short sequences or few long ones, for a vanilla RNN, LSTM, GRU, a
    dilated convolution and a Transformer, each with two layers of width 128. Half a minute on 2 cores.
    """
    recurrent = RecurrentConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2)
    models = {
        "RNN": replace(recurrent, cell="rnn"),
        "LSTM": replace(recurrent, cell="lstm"),
        "GRU": replace(recurrent, cell="gru"),
        "convolution": ConvolutionConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2),
        "Transformer": GPTConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2, heads=4),
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rounds = max(3, round(5 * scale))
    times: dict[str, list[float]] = {name: [] for name in models}
    built = {}
    for name, config in models.items():
        torch.manual_seed(seed)
        built[name] = config.build().to(device)
    for length in LENGTHS:
        tokens = torch.randint(VOCABULARY, (TOKENS // length, length), device=device)
        rows: dict[str, list[float]] = {name: [] for name in built}
        for _ in range(rounds):  # alternately, so that a busy machine slows all models equally
            for name, model in built.items():
                rows[name].append(_step(model, tokens))
        for name, seconds in rows.items():
            times[name].append(statistics.median(seconds[1:]) * 1e3)
        say(f"{length:5} tokens: " + ", ".join(f"{name} {values[-1]:.0f} ms" for name, values in times.items()))
    chart = ChartSection(
        "Milliseconds for 4,096 tokens",
        "Forward and backward over the same number of tokens, in sequences of the length on the axis. A recurrent "
        "model computes one token after another: the longer the sequence, the fewer rows share a step.",
        lines({name: zip(map(float, LENGTHS), values, strict=True) for name, values in times.items()}),
        Axes("sequence length, tokens", "milliseconds", log=True, x_low=0),
    )
    return Study(
        words(times, LENGTHS),
        [chart],
        {"lengths": list(LENGTHS), "milliseconds": times},
        f"2 layers, width {WIDTH}, {TOKENS:,} tokens per step, median of {rounds - 1}, seed {seed}, {machine(device)}",
    )


def words(times: dict[str, list[float]], lengths: tuple[int, ...]) -> list[str]:
    """The times in sentences."""
    growth = {name: values[-1] / values[0] for name, values in times.items()}
    longest = {name: values[-1] for name, values in times.items()}
    (flat, steep), (quick, slow) = (
        (min(of, key=of.__getitem__), max(of, key=of.__getitem__)) for of in (growth, longest)
    )
    return [
        f"From sequences of {lengths[0]} tokens to sequences of {lengths[-1]:,}, with the same total number of tokens, "
        f"the {steep} takes {growth[steep]:.1f} times as long and the {flat} {growth[flat]:.1f} times: a recurrent "
        "model computes the tokens of a sequence one after another, and fewer sequences share each step.",
        f"At {lengths[-1]:,} tokens the {quick} is fastest with {longest[quick]:.0f} ms, and the {slow} takes "
        f"{longest[slow] / longest[quick]:.1f} times as long.",
    ]


def _step(model: LanguageModel, tokens: torch.Tensor) -> float:
    synchronize(tokens.device)
    began = time.perf_counter()
    model(tokens).float().square().mean().backward()
    synchronize(tokens.device)
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began
