"""Layers with a state of fixed size beside attention: `python -m bench.statespace cost`, `quality`, `growth`, `decode`.

* ``cost``     CPU seconds of one training step of each recipe, in turn, median of several
* ``quality``  each recipe trained for as many steps as fit in ``--seconds`` of CPU time; loss on the held-out text
* ``growth``   forward and backward pass of one layer, batch 1, over lengths that double: the exponent of its CPU time
* ``decode``   milliseconds per token after so many tokens

CPU seconds, not those of the clock, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from bench.growth import ALLOCATOR, slope

RECIPES = {
    "transformer": ("shakespeare",),
    "s4d": ("shakespeare-ssm",),
    "mamba": ("shakespeare-mamba",),
    "mingru": ("shakespeare-mingru",),
    "minlstm": ("shakespeare-mingru", "--model.attention.kind", "minlstm"),
    "hybrid": ("shakespeare-hybrid",),
}
LAYERS = {"s4d": {}, "mamba": {"expand": 1.0}, "mingru": {}, "minlstm": {}, "softmax": {}, "window": {"size": 512}}
WIDTH, HEADS = 256, 4
LONG = 2**14  # tokens; above, one pass is timed, without one before it


def experiment(name: str, seed: int = 1) -> Any:
    """The recipe of a member."""
    from regard.recipes import recipe

    base = recipe(*RECIPES[name])
    return replace(base, seed=seed, train=replace(base.train, precision="float32", compile=False, device="cpu"))


def engines(names: Sequence[str], seed: int, steps: int = 1) -> tuple[dict[str, Any], Any]:
    """A training engine for each member, and their data."""
    from regard.parallel.world import World
    from regard.train.engine import Engine

    data, made = None, {}
    for name in names:
        one = experiment(name, seed)
        data = one.data.build(one.model.context) if data is None else data
        model = replace(one.model, vocabulary=data.vocabulary)
        one = replace(one, model=model, train=replace(one.train, steps=steps))
        made[name] = Engine(one, data, World(device=torch.device("cpu")))
    return made, data


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of a call, by all threads of this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def cost(names: Sequence[str], rounds: int = 7) -> dict[str, float]:
    """CPU seconds of a training step of each member."""
    made, _ = engines(names, 1, steps=1000)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        for name, engine in made.items():
            times[name].append(cpu_seconds(engine.update))
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def quality(name: str, seed: int, seconds: float, step: float, batches: int) -> dict[str, Any]:
    """The loss of a member after ``seconds`` of CPU time at ``step`` seconds per step."""
    from regard.train.evaluate import evaluate

    steps = round(seconds / step)
    made, data = engines([name], seed, steps)
    engine = made[name]
    used = cpu_seconds(lambda: [engine.update() for _ in range(steps)])
    held_out = list(islice(data.validation_batches(8), batches))
    result = evaluate(engine, held_out)
    assert result is not None
    loss = result["validation_loss"]
    return {"name": name, "seed": seed, "steps": steps, "cpu_seconds": round(used, 1), "loss": round(loss, 4)}


def layer(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """One layer [1, N, C] with its projections, causal."""
    from regard.attention import AttentionConfig, Causal, LayerSpec, Range
    from regard.config import load
    from regard.models.device import parameter_device
    from regard.nn.attention import AttentionContext, AttentionSizes, SelfAttention
    from regard.nn.positions.position import NoRotation

    torch.manual_seed(1)
    config = load(AttentionConfig, {"kind": name, **LAYERS[name]})
    mechanism = config.mechanism(LayerSpec(HEADS, HEADS, WIDTH // HEADS, 65_536))
    made = (config.layer or SelfAttention)(AttentionSizes(WIDTH, HEADS, HEADS), mechanism)
    assert parameter_device(made).type == "cpu"
    mask = Causal() & config.pattern()
    return lambda x: made(x, AttentionContext(mechanism.plan(mask, Range(x.shape[1]), like=x), NoRotation()))


def growth(name: str, lengths: Sequence[int], repeats: int) -> dict[str, Any]:
    """The exponent of the CPU time of a forward and backward pass."""
    run, points = layer(name), []
    for length in lengths:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        once = lambda x=x: run(x).sum().backward()  # noqa: E731
        if length <= LONG:
            once()
        times = [cpu_seconds(once) for _ in range(repeats if length <= LONG else 1)]
        points.append((length, statistics.median(times)))
    fitted = slope(points)
    seconds = {length: round(value, 4) for length, value in points}
    return {
        "name": name,
        "exponent": round(fitted.value, 3),
        "interval": [round(fitted.low, 3), round(fitted.high, 3)],
    } | {"seconds": seconds}


def decode(name: str, lengths: Sequence[int], count: int = 40) -> dict[str, Any]:
    """CPU milliseconds per token of one row after so many tokens."""
    model = experiment(name).model.build().eval()
    found = {}
    for length in lengths:
        state = model.start(1, length + count + 1)
        text = torch.randint(model.config.vocabulary, (1, length))
        _, state = model.step(text, state, last=True)
        token, times = text[:, :1], []
        for _ in range(count):
            began = time.process_time()
            _, state = model.step(token, state)
            times.append(time.process_time() - began)
        found[length] = round(1e3 * statistics.median(times), 3)
    return {"name": name, "milliseconds": found}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "quality", "growth", "decode"))
    parser.add_argument("--members", default=None, help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step", default=None, help="CPU seconds per step as `cost` printed them, in JSON")
    parser.add_argument("--batches", type=int, default=40, help="batches of held-out text")
    parser.add_argument("--lengths", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.what == "growth" and not ALLOCATOR.items() <= os.environ.items():  # it is read when a process begins
        os.execve(
            sys.executable, [sys.executable, "-m", "bench.statespace", *sys.argv[1:]], {**os.environ, **ALLOCATOR}
        )
    torch.set_num_threads(1)
    names = (given.members or ",".join(LAYERS if given.what == "growth" else RECIPES)).split(",")
    default = [2**p for p in range(10, 17)] if given.what == "growth" else [256, 1024, 4096, 16384]
    lengths = default if given.lengths is None else [int(n) for n in given.lengths.split(",")]
    if given.what == "cost":
        print(json.dumps({name: round(value, 4) for name, value in cost(names).items()}))
        return
    steps = cost(names) if given.step is None and given.what == "quality" else json.loads(given.step or "{}")
    for name in names:
        if given.what == "quality":
            found = quality(name, given.seed, given.seconds, steps[name], given.batches)
        elif given.what == "growth":
            found = growth(name, [n for n in lengths if name != "softmax" or n <= 2**14], given.repeats)
        else:
            found = decode(name, lengths)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
