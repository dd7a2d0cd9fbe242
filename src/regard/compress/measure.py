"""What a compressed model costs and saves: loss, time per token, bytes."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from regard.data import TextBatch
from regard.generate import Sampling, sampling_decoder
from regard.models import LanguageModel
from regard.models.device import parameter_device
from regard.tasks import LanguageTask
from regard.train.evaluate import score
from regard.train.precision import Precision

PROMPT, TOKENS, ROUNDS = 16, 32, 5


class Figures(NamedTuple):
    """One row of the table."""

    name: str
    loss: float  # nats per token
    milliseconds: float  # per generated token, batch 1
    bytes: int  # of the stored tensors


def loss_of(model: LanguageModel, batches: Sequence[TextBatch]) -> float:
    """Nats per token."""
    return score(model, LanguageTask(), batches, Precision("float32", parameter_device(model))).loss


def size_in_bytes(model: torch.nn.Module) -> int:
    """Bytes of the tensors that a checkpoint stores; those that share memory count once."""
    unique = {tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}
    return sum(unique.values())


def decoding_times(models: Sequence[LanguageModel], prompt: Sequence[int]) -> list[float]:
    """Seconds per token of each model, batch 1, greedy: the median of rounds in which the models take turns."""

    def run(model: LanguageModel) -> float:
        decoder = sampling_decoder(model, [list(prompt)], TOKENS, Sampling(0.0))
        decoder.next()
        began = time.perf_counter()
        for tokens in decoder:
            tokens.tolist()  # waits for a GPU
        return (time.perf_counter() - began) / (TOKENS - 1)

    rounds = [[run(model) for model in models] for _ in range(ROUNDS + 1)][1:]  # the first warms up
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def compare(
    named: dict[str, LanguageModel], batches: Sequence[TextBatch], say: Callable[[str], object]
) -> list[Figures]:
    """The figures of each model on the same text."""
    losses = []
    for name, model in named.items():
        say(f"measuring the loss of {name}")
        losses.append(loss_of(model, batches))
    say("measuring the time per token")
    prompt = batches[0].inputs[0, :PROMPT].tolist()
    times = decoding_times(list(named.values()), prompt)
    rows = zip(named.items(), losses, times, strict=True)
    return [Figures(name, loss, 1000 * took, size_in_bytes(model)) for (name, model), loss, took in rows]


def table(rows: Sequence[Figures]) -> str:
    """The figures in columns; differences and factors are relative to the first row.

    >>> print(table([Figures("run", 1.5, 8.0, 4_000_000), Figures("run-int8", 1.502, 4.0, 1_000_000)]))
    run       loss  1.5000 nats             8.00 ms per token            4.0 MB
    run-int8  loss  1.5020 nats (+0.0020)   4.00 ms per token (2.00 x)   1.0 MB (25 %)
    """
    first, wide = rows[0], max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        cost, faster, size = "", "", ""
        if row is not first:
            cost, faster = f"({row.loss - first.loss:+.4f})", f"({first.milliseconds / row.milliseconds:.2f} x)"
            size = f" ({row.bytes / first.bytes:.0%})".replace("%", " %")
        cells = f"loss {row.loss:7.4f} nats {cost:9} {row.milliseconds:6.2f} ms per token {faster:9}"
        lines.append(f"{row.name:{wide}}  {cells} {row.bytes / 1e6:6,.1f} MB{size}".rstrip())
    return "\n".join(lines)
