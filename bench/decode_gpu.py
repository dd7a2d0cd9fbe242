"""Decoding of a Llama of 1.1 billion random weights on a GPU, in bfloat16 and with int8 weights.

`python -m bench.decode_gpu` checks the kernels of one row against float64 for several tiles (a process each), finds the
fastest tiles with the whole step, prints the kernels of a step by time, and times both types in turns: batch 1, CUDA
graphs, compiled, 64 tokens of prompt and 128 more. About three minutes on an H200, most of it compilation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.generation import LLAMA, MORE, PROMPT

TILES = [(4, 2048, 4), (8, 2048, 4), (8, 2048, 8), (16, 2048, 8), (4, 1024, 4), (8, 1024, 4), (2, 2048, 4)]
HEADS, GROUPS, WIDTH, HIDDEN = 32, 4, 2048, 5632
BEFORE = {"bf16": 1096.0, "int8": 1203.0}  # tokens/s before these kernels, on the same kind of machine
START = time.perf_counter()


def say(*words: object) -> None:
    """Print with the seconds since the beginning."""
    print(f"[{time.perf_counter() - START:5.0f} s]", *words, flush=True)


def distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found.double() - expected).norm() / expected.norm())


def rms(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    x = x.double()
    return x if gain is None else x * (x.square().mean() + eps).rsqrt() * gain.double()


def check_product(dtype: torch.dtype, int8: bool, sizes: tuple[int, int], after: str, full: bool) -> float:
    """The error of one product of random numbers; ``full``: with norm, bias and sum."""
    from regard.nn.fused.decode_gemv_kernel import through

    (rows, width), device = sizes, "cuda"
    x, other = (torch.randn(1, 1, n, device=device).to(dtype) for n in (width, rows))
    total = rows * (2 if after == "swiglu" else 1)
    weight = (torch.randn(total, width, device=device) * width**-0.5).to(dtype)
    scale = None
    if int8:
        scale = torch.rand(total, device=device) * 1e-3 + 1e-4
        weight = torch.randint(-127, 128, (total, width), device=device, dtype=torch.int8)
    gain, bias = (torch.rand(n, device=device).to(dtype) + 0.5 for n in (width, total))
    normed = full or after == "swiglu"
    args = (gain if normed else None, 1e-6, weight, bias if full else None, after, other if full else None)
    found = through(x, *args, None if scale is None else scale.view(torch.int32))
    matrix = weight.double() if scale is None else weight.double() * scale.double()[:, None]
    y = F.linear(rms(x, args[0], 1e-6), matrix, bias.double() if full else None)
    if after == "swiglu":
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    elif after == "relu2":
        y = F.relu(y).square()
    return distance(found, y + other.double() if full else y)


def check_attention(dtype: torch.dtype, heads: int, groups: int, width: int, keys: int, masked: bool) -> float:
    """The error of rotation, cache write and attention for one token; also that the cache changed in one entry only."""
    from regard.nn.fused.decode_attention_kernel import attend_one

    device, place = "cuda", keys * 2 // 3
    qkv = torch.randn(1, 1, (heads + 2 * groups) * width, device=device).to(dtype)
    k, v = (torch.randn(1, groups, keys, width, device=device).to(dtype) for _ in range(2))
    angle = torch.rand(1, 1, 1, width // 2, device=device) * 7
    seen = torch.rand(1, keys, device=device) < 0.5
    seen[0, place] = True
    before = [x.clone() for x in (k, v)]
    at = torch.tensor([[place]], device=device)
    found = attend_one(qkv, angle.cos(), angle.sin(), k, v, at, seen if masked else None, width**-0.5)
    q, new_k, new_v = qkv.double().view(-1, width).split([heads, groups, groups])
    cos, sin = angle.double().view(-1).cos(), angle.double().view(-1).sin()

    def rotated(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    for cache, old, new in ((k, before[0], rotated(new_k)), (v, before[1], new_v)):
        old[0, :, place] = new.to(dtype)
        close = distance(cache[0, :, place], new) < (1e-6 if dtype == torch.float32 else 4e-3)
        cache_again = cache.clone()
        cache_again[0, :, place] = old[0, :, place]
        assert close, "the cache has a wrong entry"
        assert torch.equal(cache_again, old), "another entry of the cache was changed"
    keys64, values64 = (x[0].double().repeat_interleave(heads // groups, 0) for x in (k, v))
    scores = torch.einsum("hd,hkd->hk", rotated(q), keys64) * width**-0.5
    if masked:
        scores = scores.masked_fill(~seen, float("-inf"))
    return distance(found.view(heads, width), torch.einsum("hk,hkd->hd", scores.softmax(-1), values64))


def check(tile: tuple[int, int, int]) -> bool:
    """All products with one tile, by the side of float64; with the first tile the attention too."""
    from regard.nn.fused import decode_gemv_kernel as kernel

    kernel.TILES = dict.fromkeys(kernel.TILES, kernel.KernelTile(*tile))
    torch.manual_seed(sum(tile))
    errors: dict[str, float] = {}
    shapes = {"qkv": (2560, WIDTH), "out": (WIDTH, WIDTH), "down": (WIDTH, HIDDEN)}
    for int8 in (False, True):
        kind = "int8" if int8 else "bf16"
        for name, sizes in shapes.items():
            errors[f"bf16 {kind} {name}"] = check_product(torch.bfloat16, int8, sizes, "", full=False)
        errors[f"bf16 {kind} gated"] = check_product(torch.bfloat16, int8, (HIDDEN, WIDTH), "swiglu", full=False)
        errors[f"float32 {kind} odd"] = check_product(torch.float32, int8, (37, 576), "swiglu", full=True)
        errors[f"float32 {kind} squared"] = check_product(torch.float32, int8, (50, 5632), "relu2", full=True)
    if tile == TILES[0]:
        for dtype in (torch.bfloat16, torch.float32):
            for case in ((HEADS, GROUPS, 64, 512, True), (9, 3, 64, 100, False), (4, 4, 24, 130, True)):
                errors[f"{str(dtype)[6:]} attention {case}"] = check_attention(dtype, *case)
    wrong = {name: e for name, e in errors.items() if not e < (2e-6 if name.startswith("float32") else 6e-3)}
    least = [max(e for name, e in errors.items() if name.startswith(kind)) for kind in ("float32", "bf16")]
    print(f"tile {tile}: {len(errors)} cases, largest error float32 {least[0]:.1e}, bf16 {least[1]:.1e}", end=" ")
    print(f"WRONG {wrong}" if wrong else "right")
    return not wrong


def model(int8: bool, sizes: dict[str, Any]) -> Any:
    """A model with random weights."""
    from regard.config import load
    from regard.models import GPTConfig
    from regard.nn.fused import install
    from regard.nn.quantized import Int8Config, quantize

    torch.manual_seed(1)
    with torch.device("cuda"):
        made: Any = load(GPTConfig, {**sizes, "qk_norm": False, "zero_init": False}).build()
    if int8:
        quantize(made, Int8Config())
        install(made)
    return made.bfloat16().eval() if sizes is LLAMA["1.1B"] else made.eval()


def check_model(int8: bool) -> None:
    """A small model in float32, token by token in an uncompiled graph, by the side of its full forward pass."""
    from regard.generate.cuda_graph import GraphedStep

    sizes = {"vocabulary": 96, "context": 256, "layers": 3, "heads": 4, "kv_heads": 2, "width": 128}
    small = model(int8, {**sizes, "feedforward": "swiglu"})
    tokens = torch.randint(96, (1, 200), device="cuda")
    with torch.no_grad():
        full = small(tokens).double()
        step = GraphedStep(small, small.start(1, 256, fixed=True), compiled=False)
        found = []
        for t in range(tokens.shape[1]):
            step.token.copy_(tokens[:, t : t + 1])
            found.append(step().clone())
    error = distance(torch.stack(found, 1), full)
    say(f"small model, {'int8' if int8 else 'float'}: the error of 200 steps in a graph is {error:.1e}")


class Decoding:
    """The step of the 1.1B model in a graph."""

    def __init__(self, int8: bool):
        from regard.generate.cuda_graph import GraphedStep

        self.model = model(int8, LLAMA["1.1B"])
        self.state = self.model.start(1, 512, fixed=True)
        self.step = GraphedStep(self.model, self.state, lambda logits: logits.argmax(-1))
        self.prompt = torch.randint(32_000, (1, PROMPT), device="cuda")

    def rate(self, tokens: int = MORE) -> float:
        """Tokens/s after a prompt."""
        from regard.generate.cuda_graph import reset_state

        reset_state(self.state)
        logits, _ = self.model.step(self.prompt, self.state)
        self.step.token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(tokens):
            self.step()
        torch.cuda.synchronize()
        return tokens / (time.perf_counter() - began)


def tune(name: str, decoding: Decoding, right: list[tuple[int, int, int]]) -> None:
    """The fastest tile of each kind of product, by the time of the whole step."""
    from regard.nn.fused import decode_gemv_kernel as kernel

    for key in [key for key in kernel.TILES if key.startswith("int8" if name == "int8" else "float")]:
        rates = {}
        for tile in right:
            kernel.TILES[key] = kernel.KernelTile(*tile)
            decoding.step.capture()
            rates[tile] = max(decoding.rate(64) for _ in range(2))
        kernel.TILES[key] = kernel.KernelTile(*max(rates, key=lambda tile: rates[tile]))
        say(f"{name}, {key}:", ", ".join(f"{tile} {rate:.0f}" for tile, rate in rates.items()), "->", kernel.TILES[key])
    decoding.step.capture()


def show_kernels(title: str, decoding: Decoding) -> None:
    """The 25 kernels of a step that take longest; those of one name and grid are one line."""
    decoding.rate(8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            decoding.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(str(Path(folder) / "trace.json"))
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in kernels:
        times[event["name"][:70], str(event["args"].get("grid", ""))].append(event["dur"])
    busy = sum(map(sum, times.values())) / 4
    say(f"{title}: {len(kernels) / 4:.0f} kernels and {busy:.0f} µs of kernels a token")
    for (name, grid), spent in sorted(times.items(), key=lambda item: -sum(item[1]))[:25]:
        print(f"  {sum(spent) / 4:7.1f} µs  {len(spent) / 4:5.1f} x {statistics.median(spent):6.2f}  {name} {grid}")


def time_head(weight: Tensor) -> None:
    """The output layer alone, over four copies that fit no cache: PyTorch's product and ours."""
    from regard.nn.fused.decode_gemv_kernel import through

    copies, x = [weight.clone() for _ in range(4)], torch.randn(1, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
    for name, way in {"F.linear": F.linear, "through": lambda x, w: through(x, None, 0.0, w, None, "", None)}.items():
        for _ in range(3):
            way(x, copies[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for copy in copies * 5:
                way(x, copy)
        graph.replay()
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        say(f"head in bf16 by {name}: {(time.perf_counter() - began) / 20 * 1e6:.1f} µs")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tile", type=int, help="only check one tile")
    parser.add_argument("--separate", action="store_true", help="no kernel begins before the last one has ended")
    chosen = parser.parse_args()
    from regard.nn.fused import decode_gemv_kernel as kernel

    kernel.DEPENDENT = not chosen.separate
    if chosen.tile is not None:
        sys.exit(not check(TILES[chosen.tile]))
    right = right_tiles([])
    if not right:
        kernel.DEPENDENT, right = False, right_tiles(["--separate"])
    if not right:
        sys.exit("no tile is right: nothing is timed")
    measure(right, chosen.rounds)


def right_tiles(options: list[str]) -> list[tuple[int, int, int]]:
    """The tiles that pass ``check``, each in a process."""
    command = [sys.executable, "-m", "bench.decode_gpu", *options, "--tile"]
    checks = [subprocess.Popen([*command, str(i)]) for i in range(len(TILES))]
    right = [tile for tile, running in zip(TILES, checks, strict=True) if running.wait() == 0]
    say(f"{len(right)} of {len(TILES)} tiles are right {' '.join(options)}")
    return right


def measure(right: list[tuple[int, int, int]], rounds: int) -> None:
    """Checks in a model, tiles, profiles and times."""
    from regard.nn.fused import decode_gemv_kernel as kernel

    check_model(False)
    check_model(True)
    field = {}
    for name in ("bf16", "int8"):
        field[name] = Decoding(name == "int8")
        say(f"{name} is compiled: {field[name].rate():.0f} tokens/s with the given tiles (before: {BEFORE[name]:.0f})")
        tune(name, field[name], right)
    time_head(field["bf16"].model.unembed.weight)
    medians = {}
    for early in (False, True) if kernel.DEPENDENT else (False,):
        kernel.DEPENDENT = early
        for name, decoding in field.items():
            decoding.step.capture()
            show_kernels(f"{name}, {'overlapping' if early else 'separate'} kernels", decoding)
        rates: dict[str, list[float]] = {name: [] for name in field}
        for _ in range(rounds):
            for name, decoding in field.items():
                rates[name].append(decoding.rate())
        medians = {name: statistics.median(found) for name, found in rates.items()}
        ratio = statistics.median(a / b for a, b in zip(rates["int8"], rates["bf16"], strict=True))
        say(f"{'overlapping' if early else 'separate'} kernels: {medians}, int8 / bf16 {ratio:.3f}")
    for name, rate in medians.items():
        say(f"{name}: {rate:.0f} tokens/s, {rate / BEFORE[name]:.2f} x before; int8 / bf16 before: {rate / 1096:.2f}")


if __name__ == "__main__":
    main()
