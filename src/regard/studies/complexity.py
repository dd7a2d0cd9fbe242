"""Work, dependent steps and path length of a layer: the formulas of the textbooks beside what is counted and timed."""

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from regard.config import load
from regard.data import TextConfig
from regard.models import ModelConfig
from regard.models.base import LanguageModel
from regard.models.recurrent import RecurrentBlock
from regard.nn.recurrent import RecurrentState
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.plan import trace
from regard.studies.page import Study, lines, machine
from regard.train import Experiment, TrainConfig

WIDTH, WINDOW = 64, 64
COUNTED, PATHS = (256, 512, 1024, 2048), (16, 32, 64, 128, 256)  # lengths at which FLOPs, steps and hops are counted
TIMED, ROUNDS = (512, 1024, 2048, 4096, 8192), 12
GPT = {"kind": "gpt", "layers": 1, "heads": 4, "zero_init": False, "feedforward": "none", "position": "none"}


class Kind(NamedTuple):
    """A layer: its textbook formulas (Vaswani et al. 2017, table 1), and the model that has it."""

    work: str
    steps: str
    path: str
    model: dict[str, Any]


KINDS = {
    "recurrent": Kind("n d²", "n", "n", {"kind": "recurrent", "cell": "rnn", "layers": 1}),
    "convolution (kernel 3)": Kind(
        "k n d²", "1", "n / (k - 1)", {"kind": "convolution", "layers": 1, "kernel": 3, "zero_init": False}
    ),
    "dilated convolutions": Kind(
        "k n d²", "1", "log n", {"kind": "convolution", "layers": 8, "kernel": 2, "zero_init": False}
    ),
    "attention": Kind("n² d", "1", "1", GPT),
    f"window attention ({WINDOW})": Kind(
        "w n d", "1", "n / w", {**GPT, "attention": {"kind": "window", "size": WINDOW}}
    ),
    "linear attention": Kind("n d²", "1", "1", {**GPT, "attention": "linear"}),
    "state space (S4D)": Kind("n log n d", "log n", "1", {**GPT, "attention": {"kind": "s4d", "kernel": 0}}),
}


class LayerCost(NamedTuple):
    """What was found for one kind of layer, by length; intervals are 95 %."""

    flops: list[float]  # of the forward pass
    steps: list[int]  # tensor operations that wait for one another
    hops: list[int]  # applications of the layer from the first input to the last output
    seconds: list[float]  # of a forward and backward pass
    exponent: tuple[float, float, float]  # of the time: estimate, low, high


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What does a layer cost, and how far apart are two tokens in it? Work, dependent steps and path length, measured.

    regard study complexity

    Layers of width 64, without feed-forward networks: a vanilla RNN, convolutions, attention, window and linear
    attention and a state-space model. FLOPs are traced, operations that depend on one another counted, hops between the
    first and the last token found by gradients, forward and backward passes timed. A minute on 2 cores.
    """
    rounds = max(2, round(ROUNDS * scale))
    models = {name: built(kind) for name, kind in KINDS.items()}
    seconds = _timed(models, rounds, seed)
    found = {}
    for name, model in models.items():
        times = seconds[name]
        found[name] = LayerCost(
            [flops(KINDS[name], n) for n in COUNTED],
            [dependent_steps(model, n) for n in COUNTED],
            [hops(model, n, seed) for n in PATHS],
            [min(t) for t in times],
            exponent(TIMED, times, seed),
        )
        say(f"{name}: hops {found[name].hops}, dependent operations {found[name].steps}")
    return Study(
        words(found),
        charts(found),
        {"counted": COUNTED, "paths": PATHS, "timed": TIMED, "found": {n: m._asdict() for n, m in found.items()}},
        f"width {WIDTH}, one sequence, fastest of {rounds} passes, seed {seed}, {machine()}",
    )


def built(kind: Kind) -> LanguageModel:
    """The model with that layer."""
    model = load(ModelConfig, {**kind.model, "vocabulary": 16, "context": max(TIMED), "width": WIDTH}).build()
    assert isinstance(model, LanguageModel)
    return model


def flops(kind: Kind, length: int) -> float:
    """FLOPs of the blocks' forward pass over ``length`` tokens, from a fake step."""
    model = load(ModelConfig, {**kind.model, "vocabulary": 16, "context": length, "width": WIDTH})
    found = trace(Experiment(model, TextConfig(batch=1), train=TrainConfig(1, device="cpu")))
    return sum(part.flops for name, part in found.parts.items() if name.startswith("blocks"))


class Depth(TorchDispatchMode):
    """The longest chain of operations on tensors, each of which needs a result of the one before; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.of: WeakKeyDictionary[torch.UntypedStorage, int] = WeakKeyDictionary()
        self.deepest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = args[1:] if func is torch.ops.aten.copy_.default else (args, kwargs)  # what is overwritten is not read
        given = [x.untyped_storage() for x in tree_iter(read) if isinstance(x, Tensor)]
        depth = 1 + max((self.of.get(one, 0) for one in given), default=0)
        for x in tree_iter(out):
            if isinstance(x, Tensor) and (func._schema.is_mutable or x.untyped_storage() not in given):
                self.of[x.untyped_storage()] = max(depth, self.of.get(x.untyped_storage(), 0))
                self.deepest = max(self.deepest, depth)
        return out


@torch.no_grad()
def dependent_steps(model: LanguageModel, length: int) -> int:
    """The depth of the forward pass. A recurrent layer runs cell by cell, as by its definition."""
    with Depth() as mode:
        model.features(torch.zeros(1, length, dtype=torch.long))
    return mode.deepest


def hops(model: LanguageModel, length: int, seed: int) -> int:
    """How often layers are applied until the last output depends on the first input, by their gradients.

    The gradient of random sums at the positions reached so far shows those that one more application reaches.
    """
    torch.manual_seed(seed)
    pairs = applications(model, length)
    reached = torch.zeros(length, dtype=torch.bool)
    reached[-1] = True
    for count in range(1, length + 1):
        given, out = pairs[-count % len(pairs)]  # from the last layer down, and again
        (slope,) = torch.autograd.grad(out, given, torch.randn_like(out) * reached[:, None], retain_graph=True)
        size = slope[0].norm(dim=-1)
        reached = size > 1e-7 * size.max()  # less is the rounding of a Fourier transform
        if reached[0]:
            return count
    raise AssertionError("a causal layer depends on the token before")


def applications(model: LanguageModel, length: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and outputs [1, N, C] of each layer; of a recurrent one, states and the next states, side by side."""
    block = model.blocks[0]
    if isinstance(block, RecurrentBlock):
        x = torch.randn(length, 1, WIDTH)
        before = torch.randn(1, length, WIDTH, requires_grad=True)
        shifted = F.pad(before, (0, 0, 1, 0))[0, :length, None]
        return [(before, block.recurrent(x, None, RecurrentState(shifted))[0].transpose(0, 1))]
    pairs: list[tuple[Tensor, Tensor]] = []
    record = lambda _, inputs, out: pairs.append((inputs[0], out))  # noqa: E731
    hooks = [one.register_forward_hook(record) for one in model.residual_blocks()]
    model.features(torch.randint(16, (1, length)))
    for hook in hooks:
        hook.remove()
    return pairs


def _timed(models: dict[str, LanguageModel], rounds: int, seed: int) -> dict[str, list[list[float]]]:
    """Seconds of forward and backward passes by length; models and lengths alternate, as load varies."""
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in TIMED] for name in models}
    tokens = torch.randint(16, (1, max(TIMED)), generator=torch.Generator().manual_seed(seed))
    for turn in range(rounds + 1):
        for place, length in enumerate(TIMED):
            for name, model in models.items():
                began = time.perf_counter()
                model.features(tokens[:, :length]).square().mean().backward()
                if turn:  # the first warms up
                    seconds[name][place].append(time.perf_counter() - began)
    return seconds


def exponent(lengths: Sequence[int], times: Sequence[Sequence[float]], seed: int) -> tuple[float, float, float]:
    """b of time ~ n^b over the three longest lengths, by least squares; 95 % interval by resampling the rounds."""
    draw = random.Random(seed)
    logs = np.log(lengths[-3:])

    def slope(samples: Sequence[Sequence[float]]) -> float:
        return float(np.polyfit(logs, [math.log(min(s)) for s in samples], 1)[0])

    last = times[-3:]
    again = sorted(slope([draw.choices(list(one), k=len(one)) for one in last]) for _ in range(400))
    return slope(last), again[9], again[-10]


def law(values: Sequence[float]) -> tuple[float, float]:
    """a and b of FLOPs = a n d² + b n² d."""
    n = np.array(COUNTED, float)
    (a, b), *_ = np.linalg.lstsq(np.stack([n * WIDTH**2, n**2 * WIDTH], 1), np.array(values), rcond=None)
    return float(a), float(b)


def work(found: dict[str, LayerCost]) -> list[tuple[str, ...]]:
    """The table of FLOPs and times."""
    result = []
    for name, one in found.items():
        a, b = law(one.flops)
        terms = f"{a:.1f} n d²" + (f" + {b:.1f} n² d" if b > 0.05 else "")
        power, low, high = one.exponent
        result.append((name, KINDS[name].work, terms, f"n^{power:.2f} ({low:.2f} to {high:.2f})"))
    return result


def waits(found: dict[str, LayerCost]) -> list[tuple[str, ...]]:
    """The table of steps and hops."""
    result = []
    for name, one in found.items():
        more = growth(one)
        counted = f"{more:.2g} n" if more else f"{one.steps[0]}, constant"
        result.append((name, KINDS[name].steps, counted, KINDS[name].path, f"{one.hops[0]} → {one.hops[-1]}"))
    return result


def growth(one: LayerCost) -> float:
    """Further steps for each further token."""
    return (one.steps[-1] - one.steps[0]) / (COUNTED[-1] - COUNTED[0])


def words(found: dict[str, LayerCost]) -> list[str]:
    """What agrees with the formulas, and what does not."""
    far = "; ".join(f"{name}: {one.hops[-1]}" for name, one in found.items())
    growing = "; ".join(f"{name}: {growth(one):.2g}" for name, one in found.items() if growth(one))
    powers = "; ".join(f"{name}: {one.exponent[0]:.2f}" for name, one in found.items())
    return [
        f"Applications of the layer from the first to the last of {PATHS[-1]} tokens: {far}.",
        f"Operations that wait for one another, for each further token: {growing}; none in the others. An operation on "
        "a whole tensor counts once, also a sum or a Fourier transform, which take log n steps of their own; window "
        "and linear attention are computed in chunks, one after another.",
        f"The time of a pass grows as the length to the power of: {powers}. The formulas say what it tends to; at "
        f"{TIMED[-3]:,} to {TIMED[-1]:,} tokens linear terms and the start of operations still count.",
    ]


def charts(found: dict[str, LayerCost]) -> list[ChartSection]:
    """The tables, the hops and the times."""
    flops = (
        "n tokens of width d, kernel k, window w. FLOPs of the forward pass with the projections, fitted over lengths; "
        "time of a forward and backward pass, with its 95 % interval."
    )
    steps = (
        "Steps: operations on whole tensors that wait for one another. Path: how often the layer is applied until the "
        f"last output depends on the first input, for {PATHS[0]} → {PATHS[-1]} tokens."
    )
    none, tables = Axes("", ""), (("layer", "O(·)", "FLOPs", "time"), ("layer", "steps", "counted", "path", "found"))
    hops = {name: list(zip(map(float, PATHS), map(float, one.hops), strict=True)) for name, one in found.items()}
    times = {
        name: [(float(n), s / n * 1e6) for n, s in zip(TIMED, one.seconds, strict=True)] for name, one in found.items()
    }
    return [
        ChartSection("Work", flops, [], none, columns=tables[0], rows=work(found)),
        ChartSection("Sequential steps and path length", steps, [], none, columns=tables[1], rows=waits(found)),
        ChartSection(
            "Hops from the first token to the last",
            "How often the layer, or the cell of the RNN, is applied until the gradient of the last output reaches "
            "the first input. One layer of each kind; the dilated convolutions are a stack of 8.",
            lines(hops),
            Axes("sequence length, tokens", "hops", log=True, x_low=0),
        ),
        ChartSection(
            "Time per token",
            "Forward and backward pass of one sequence, on this machine. Linear work is a flat line; a kernel that "
            "does more tokens at a time falls until the machine is busy.",
            lines(times),
            Axes("sequence length, tokens", "microseconds per token", log=True, x_low=0),
        ),
    ]
