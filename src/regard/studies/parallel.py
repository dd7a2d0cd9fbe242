"""Sequential against parallel models: steps that wait for one another, and the time of a training step."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from regard.models import ConvolutionConfig, GPTConfig, ModelConfig, RecurrentConfig
from regard.models.base import LanguageModel
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.complexity import dependent_steps
from regard.studies.page import Study, lines, machine
from regard.train.device import synchronize

LENGTHS, WIDTH, TOKENS = (32, 64, 128, 256, 512, 1024, 2048), 128, 4096
COUNTED = (64, 512)  # lengths at which steps are counted
VOCABULARY = 65
RECURRENT = RecurrentConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2)
MODELS: dict[str, ModelConfig] = {
    "RNN": replace(RECURRENT, cell="rnn"),
    "LSTM": replace(RECURRENT, cell="lstm"),
    "GRU": replace(RECURRENT, cell="gru"),
    "convolution": ConvolutionConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2),
    "Transformer": GPTConfig(vocabulary=VOCABULARY, context=max(LENGTHS), width=WIDTH, layers=2, heads=4),
}
Times = dict[str, list[float]]  # milliseconds by model and length


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How much does parallelism over tokens save? Steps that wait for one another, and time by sequence length.

    regard study parallel

    Forward and backward over 4,096 tokens, as many short sequences or few long ones, for a vanilla RNN, LSTM, GRU, a
    dilated convolution and a Transformer, each with two layers of width 128, on the CPU and on a GPU if there is one.
    The operations that wait for one another are counted while the models run. A minute on 2 cores.
    """
    torch.manual_seed(seed)
    models = {name: built(config) for name, config in MODELS.items()}
    steps = {name: [counted(config, length) for length in COUNTED] for name, config in MODELS.items()}
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    rounds = max(3, round(5 * scale))
    times: dict[str, Times] = {}
    for device in devices:
        again = rounds if device.type == "cpu" else 4 * rounds  # a step of a GPU is short
        times[device.type] = timed({name: model.to(device) for name, model in models.items()}, device, again, say)
    return Study(
        words(steps, times),
        [_steps(steps, times), *(_times(device, found) for device, found in times.items())],
        {"lengths": LENGTHS, "counted": COUNTED, "steps": steps, "milliseconds": times},
        f"2 layers, width {WIDTH}, {TOKENS:,} tokens per step, float32, median of {rounds - 1} (GPU: {4 * rounds - 1}) "
        f"steps, seed {seed}, {' and '.join(machine(device) for device in devices)}",
    )


def counted(config: ModelConfig, length: int) -> int:
    """Operations of the forward pass that wait for one another.

    In double precision, for which oneDNN has no kernel of a whole LSTM, which would count as one operation.
    """
    return dependent_steps(built(config).double(), length)


def built(config: ModelConfig) -> LanguageModel:
    """The model of a config in ``MODELS``."""
    model = config.build()
    assert isinstance(model, LanguageModel)
    return model


def timed(models: dict[str, LanguageModel], device: torch.device, rounds: int, say: Callable[[str], None]) -> Times:
    """Median milliseconds of a forward and backward pass; models alternate, as the load of the machine varies."""
    times: Times = {name: [] for name in models}
    for length in LENGTHS:
        tokens = torch.randint(VOCABULARY, (TOKENS // length, length), device=device)
        rows: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(rounds):
            for name, model in models.items():
                rows[name].append(_step(model, tokens))
        for name, seconds in rows.items():
            times[name].append(statistics.median(seconds[1:]) * 1e3)
        found = ", ".join(f"{name} {values[-1]:.1f} ms" for name, values in times.items())
        say(f"{device.type}, {length:5} tokens: {found}")
    return times


def words(steps: dict[str, list[int]], times: dict[str, Times]) -> list[str]:
    """Steps for each further token, and the growth of the times."""
    more = {name: further(found) for name, found in steps.items()}
    growing = ", ".join(f"{name} {value:.2g}" for name, value in more.items() if value)
    constant = ", ".join(f"{name} {steps[name][-1]}" for name, value in more.items() if not value)
    said = [
        f"Operations of the forward pass that wait for one another, for each further token of a sequence: "
        f"{growing or 'none in any model'}. In all, and no more at {COUNTED[-1]} tokens than at {COUNTED[0]}: "
        f"{constant or 'no model'}."
    ]
    return [*said, *(_of(device, found, more) for device, found in times.items())]


def further(counts: Sequence[int]) -> float:
    """Further steps for each further token; a kernel for longer sequences may take fewer operations."""
    return max(0, counts[-1] - counts[0]) / (COUNTED[-1] - COUNTED[0])


def _of(device: str, times: Times, more: dict[str, float]) -> str:
    """The times on one device, and whether the models whose steps grow with length are those that slow down most."""
    growth = {name: values[-1] / values[0] for name, values in times.items()}
    last = {name: values[-1] for name, values in times.items()}
    quick = min(last, key=last.__getitem__)
    listed = ", ".join(f"{name} {value:.1f}" for name, value in growth.items())
    sequential = [growth[name] for name, value in more.items() if value]
    parallel = [growth[name] for name, value in more.items() if not value]
    if not sequential or not parallel:
        verdict = "There is nothing to compare"
    elif min(sequential) > max(parallel):
        verdict = "Every model that computes token after token slows down more than every other"
    else:
        verdict = "Not every model that computes token after token slows down more than every other"
    return (
        f"{'CPU' if device == 'cpu' else 'GPU'}: from sequences of {LENGTHS[0]} to sequences of {LENGTHS[-1]:,}, with "
        f"the same {TOKENS:,} tokens in all, a step takes so many times as long: {listed}. {verdict}. At "
        f"{LENGTHS[-1]:,} tokens the {quick} is fastest with {last[quick]:.1f} ms, and the slowest takes "
        f"{max(last.values()) / last[quick]:.1f} times as long."
    )


def _steps(steps: dict[str, list[int]], times: dict[str, Times]) -> ChartSection:
    heads = [f"{device.upper()}, ms, {n:,} tokens" for device in times for n in (LENGTHS[0], LENGTHS[-1])]
    rows = [
        (name, *map(str, found), *(f"{times[device][name][end]:.1f}" for device in times for end in (0, -1)))
        for name, found in steps.items()
    ]
    return ChartSection(
        "Sequential steps and time",
        "Steps: operations of the forward pass that wait for one another, counted while the model runs on one "
        "sequence, each operation on a whole tensor once. Kernels of a whole recurrent layer hide the start of "
        "operations, and not the waiting. Time: forward and backward.",
        [],
        Axes("", ""),
        columns=("model", *(f"steps, {n} tokens" for n in COUNTED), *heads),
        rows=rows,
    )


def _times(device: str, times: Times) -> ChartSection:
    return ChartSection(
        f"Milliseconds for {TOKENS:,} tokens, {device.upper()}",
        "Forward and backward over the same number of tokens, in sequences of the length on the axis. A recurrent "
        "model computes one token after another: the longer the sequence, the fewer rows share a step.",
        lines({name: zip(map(float, LENGTHS), values, strict=True) for name, values in times.items()}),
        Axes("sequence length, tokens", "milliseconds", log=True, x_low=0),
    )


def _step(model: LanguageModel, tokens: torch.Tensor) -> float:
    synchronize(tokens.device)
    began = time.perf_counter()
    model(tokens).float().square().mean().backward()
    synchronize(tokens.device)
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began
