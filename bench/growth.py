"""How cost grows with the length of a text: `python -m bench.growth --device cpu`, or `--device cuda`.

Forward and backward of one attention, batch 1, for every member of the family, over lengths that double. Of the times
(median of a few) and of the peak memory a straight line is fitted in logarithms: its slope is the exponent, given with
its 95% interval. On a CPU each member runs in a process of its own whose large blocks go back to the system at once,
and the peak is the process's own high-water mark above where it stood.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.attention import AttentionConfig, Causal, Full, LayerSpec, Range
from regard.config import load

HEADS, WIDTH = 4, 64
LENGTHS = {"cpu": [2**p for p in range(10, 17)], "cuda": [2**p for p in range(10, 19)]}
#: Exact attention over everything is quadratic in time: it stops earlier.
LONGEST_EXACT = {"cpu": 2**14, "cuda": 2**17}
#: Of the C library: a block of any length is new memory for each operation, so that all lengths are alike.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
FAMILY: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "softmax"},
    "window 512": {"kind": "window", "size": 512},
    "strided": {"kind": "strided"},
    "linear": {"kind": "linear"},
    "performer": {"kind": "performer"},
    "linformer": {"kind": "linformer"},
    "lsh": {"kind": "lsh", "form": "sorted"},
    "segments": {"kind": "segments", "size": 256, "memory": 256, "summaries": 64},
}


class Cost(NamedTuple):
    """Of one length: seconds, and bytes above what the inputs take."""

    length: int
    seconds: float
    memory: int


class Slope(NamedTuple):
    """An exponent and its 95% interval."""

    value: float
    low: float
    high: float


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """The exponent p of y = a x^p, by least squares in logarithms; the interval is Student's."""
    xs, ys = zip(*((math.log(x), math.log(max(y, 1e-12))) for x, y in points), strict=True)
    n, mean_x, mean_y = len(xs), statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    value = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    if n < 3:
        return Slope(value, -math.inf, math.inf)
    student = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}.get(n - 2, 2.3)
    margin = student * math.sqrt(rest / (n - 2) / spread)
    return Slope(value, value - margin, value + margin)


def measure(name: str, lengths: Sequence[int], device: torch.device, repeats: int) -> list[Cost]:
    """The costs of one member, in this process."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    costs = []
    for length in lengths:
        config = load(AttentionConfig, FAMILY[name])
        torch.manual_seed(1)
        mechanism = config.mechanism(LayerSpec(HEADS, HEADS, WIDTH, length)).to(device, dtype)
        mask = (Full() if FAMILY[name]["kind"] == "linformer" else Causal()) & config.pattern()
        shape = (1, HEADS, length, WIDTH)
        q, k, v, up = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_()
        wanted = [q, k, v, *(p for p in mechanism.parameters() if p.requires_grad)]

        def once(mechanism=mechanism, mask=mask, length=length, q=q, k=k, v=v, up=up, wanted=wanted) -> None:
            plan = mechanism.plan(mask, Range(length), like=q)
            torch.autograd.grad(mechanism(q, k, v, plan).values, wanted, up, allow_unused=True)

        once()
        before = start_watching(device)
        once()
        memory = peak(device) - before
        times = []
        for _ in range(repeats):
            synchronize(device)
            began = time.perf_counter()
            once()
            synchronize(device)
            times.append(time.perf_counter() - began)
        costs.append(Cost(length, statistics.median(times), memory))
    return costs


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def start_watching(device: torch.device) -> int:
    """Bytes in use now; from here on the greatest number is noted."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    return _status("VmRSS")


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _status("VmHWM")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def measure_apart(name: str, lengths: Sequence[int], repeats: int) -> list[Cost]:
    """As `measure`, in a process of its own on the CPU."""
    command = [sys.executable, "-m", "bench.growth", "--child", name, "--repeats", str(repeats)]
    command += ["--lengths", ",".join(map(str, lengths))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ALLOCATOR}, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return [Cost(*one) for one in json.loads(done.stdout.splitlines()[-1])]


def draw(found: dict[str, list[Cost]], path: Path, device: str) -> None:
    """Time and memory over length, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    for name, costs in found.items():
        left.loglog([c.length for c in costs], [c.seconds * 1e3 for c in costs], marker="o", markersize=3, label=name)
        right.loglog([c.length for c in costs], [c.memory / 2**20 for c in costs], marker="o", markersize=3, label=name)
    for axes, what in ((left, "forward + backward, ms"), (right, "peak memory above the inputs, MiB")):
        axes.set_xlabel("tokens")
        axes.set_ylabel(what)
        axes.grid(True, which="major", alpha=0.3)
        axes.set_xscale("log", base=2)
    left.legend(fontsize=8, frameon=False)
    figure.suptitle(f"Cost of one attention by length, {HEADS} heads x {WIDTH}, {device}", fontsize=11)
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--members", default=",".join(FAMILY))
    parser.add_argument("--lengths", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("growth"), help="folder for the numbers and the picture")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    lengths = LENGTHS[chosen.device] if chosen.lengths is None else [int(n) for n in chosen.lengths.split(",")]
    if chosen.child is not None:
        print(json.dumps(measure(chosen.child, lengths, device, chosen.repeats)))
        return
    found: dict[str, list[Cost]] = {}
    print(f"{'':12} {'time':>22} {'memory':>22}   ms and MiB at the longest")
    for name in chosen.members.split(","):
        longest = LONGEST_EXACT[chosen.device] if name == "softmax" else max(lengths)
        mine = [n for n in lengths if n <= longest]
        apart = device.type == "cpu"
        try:
            costs = measure_apart(name, mine, chosen.repeats) if apart else measure(name, mine, device, chosen.repeats)
        except RuntimeError as problem:  # out of memory, or a kernel that does not exist here: the others still count
            print(f"{name:12} failed: {str(problem)[-300:]}", flush=True)
            continue
        found[name] = costs
        time_, memory = slope([(c.length, c.seconds) for c in costs]), slope([(c.length, c.memory) for c in costs])
        last = costs[-1]
        print(
            f"{name:12} {time_.value:5.2f} ({time_.low:5.2f} to {time_.high:5.2f}) "
            f"{memory.value:5.2f} ({memory.low:5.2f} to {memory.high:5.2f})   "
            f"N = {last.length}: {last.seconds * 1e3:,.1f} ms, {last.memory / 2**20:,.0f} MiB",
            flush=True,
        )
        chosen.out.mkdir(parents=True, exist_ok=True)
        told = {name: [c._asdict() for c in costs] for name, costs in found.items()}
        (chosen.out / f"{chosen.device}.json").write_text(json.dumps(told, indent=1))
    draw(found, chosen.out / f"{chosen.device}.png", chosen.device)


if __name__ == "__main__":
    main()
