"""Memory of training by depth, `python -m bench.reversible`: reversible blocks and plain ones, forward and backward.

Each model is measured in a process of its own, with its parameters and their gradients in place before, so that what
is counted is what activations take:

    kept     bytes that autograd holds between the two passes (saved tensors, each storage once)
    peak     the most bytes that tensors held at one time during both passes, over what was there before (on a CPU from
             the profiler's record of every allocation, on a GPU `max_memory_allocated`)
    process  how much the operating system's peak for the process grew (CPU only)

A GPU and other sizes: `--device cuda --width 768 --heads 12 --batch 8 --length 1024`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config import load
from regard.models import GPT, GPTConfig, ModelConfig

KINDS = ("reversible", "pre-norm")


class Sizes(NamedTuple):
    """Of the model and its batch; the vocabulary is the lab's, so that logits weigh little."""

    width: int = 256
    heads: int = 4
    batch: int = 16
    length: int = 256
    device: str = "cpu"


class CacheIndex(NamedTuple):
    """Bytes."""

    kept: int
    peak: int
    process: int


def measure(kind: str, layers: int, sizes: Sizes) -> CacheIndex:
    """One forward and backward pass; the process's own growth means something in a fresh process only."""
    settings = {"kind": "gpt", "layers": layers, "width": sizes.width, "heads": sizes.heads, "block": kind}
    config = load(ModelConfig, {**settings, "context": sizes.length})
    assert isinstance(config, GPTConfig)
    torch.manual_seed(0)
    model: GPT = config.build().to(sizes.device).train()
    text = torch.randint(config.vocabulary, (sizes.batch, sizes.length), device=sizes.device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model(text[:1, :8]).sum().backward()  # whatever is loaded and made once
    before = high()
    _pass(model, text, {})  # before the profiler, which takes memory too
    grown = high() - before
    kept: dict[int, int] = {}
    peak = _peak_cuda(model, text, kept) if text.is_cuda else _peak_cpu(model, text, kept)
    return CacheIndex(sum(kept.values()), peak, grown)


def high() -> int:
    """The most bytes that this process has held so far; Linux counts in KiB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _pass(model: GPT, text: Tensor, kept: dict[int, int]) -> None:
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = model(text).logsumexp(-1).sum()
    loss.backward()


def _peak_cuda(model: GPT, text: Tensor, kept: dict[int, int]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _pass(model, text, kept)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_cpu(model: GPT, text: Tensor, kept: dict[int, int]) -> int:
    profile: Any = torch.autograd.profiler.profile(profile_memory=True)
    with profile:
        _pass(model, text, kept)
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="6,12,24")
    for name, default in Sizes()._asdict().items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)  # the child's own task
    chosen = parser.parse_args()
    sizes = Sizes(*(getattr(chosen, name) for name in Sizes._fields))
    depths = [int(number) for number in chosen.layers.split(",")]
    if chosen.one:
        print(json.dumps(measure(chosen.one, depths[0], sizes)))
        return
    print(f"{sizes.batch} x {sizes.length} tokens, width {sizes.width}, on {sizes.device}; MiB of activations")
    print(f"{'blocks':12}{'layers':>8}{'kept':>10}{'peak':>10}{'process':>10}")
    for kind in KINDS:
        found = [_child(kind, layers, sizes) for layers in depths]
        for layers, memory in zip(depths, found, strict=True):
            print(f"{kind:12}{layers:8}" + "".join(f"{size / 2**20:10.1f}" for size in memory))
        ratios = [last / first if first else float("nan") for first, last in zip(found[0], found[-1], strict=True)]
        print(f"{'':12}{'ratio':>8}" + "".join(f"{ratio:10.2f}" for ratio in ratios))


def _child(kind: str, layers: int, sizes: Sizes) -> CacheIndex:
    options = [word for name, value in sizes._asdict().items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "bench.reversible", "--one", kind, "--layers", str(layers), *options]
    return CacheIndex(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


if __name__ == "__main__":
    main()
