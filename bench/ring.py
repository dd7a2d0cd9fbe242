"""Ring attention on one device, block by block: `python -m bench.ring`, which prints one line of JSON.

On a GPU 262,144 tokens in bfloat16, 8 heads of 64, causal, in blocks of 32,768; on a CPU 2,048 in float32. Any mask
expression will do: `--mask "causal & window(4096)"`. The numbers:

    error         of the values and of the gradients of q, k and v against float64, |found - exact| / |exact|; the
                  gradients are those of a loss over 64 rows, so that the exact ones need the scores of these only
    ring, whole   seconds of a forward and backward pass (median of 3, after one more), and the most memory that it
                  takes beside its inputs; whole: the backend that `auto` chooses for the same call
    scores        bytes of one whole matrix of scores per head
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention import Mask, Plan, Range, Softmax
from regard.attention.backends.ring import Ring
from regard.attention.masks.expression import parse
from regard.attention.slots import make_pairs

ROWS, ROUNDS = 64, 3
NAMES = ("values", "q", "k", "v")


def main() -> None:
    """The command line."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--length", type=int, default=2**18 if cuda else 2**11)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--block", type=int, default=2**15 if cuda else 2**8)
    parser.add_argument("--mask", default="causal")
    chosen = parser.parse_args()
    print(json.dumps(measure(**vars(chosen))))


def measure(device: str, length: int, heads: int, width: int, block: int, mask: str) -> dict[str, Any]:
    """Every number, for one row of random queries, keys and values."""
    torch.manual_seed(1)
    cuda = device.startswith("cuda")
    dtype = torch.bfloat16 if cuda else torch.float32
    q, k, v, upstream = (torch.randn(1, heads, length, width, device=device).to(dtype) for _ in range(4))
    tensors = tuple(x.requires_grad_() for x in (q, k, v))
    rows = torch.linspace(0, length - 1, ROWS, device=device).long()
    few = torch.zeros_like(upstream).index_copy(2, rows, upstream[:, :, rows])
    wanted = exact(parse(mask), tensors, upstream, rows)
    ring, auto = Softmax(backend=Ring(block=block)), Softmax()
    found: dict[str, Any] = {"mask": mask, "length": length, "heads": heads, "width": width, "block": block}
    found |= {"dtype": str(dtype).removeprefix("torch."), "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name() if cuda else "cpu"
    for name, mechanism in (("ring", ring), ("whole", auto)):
        plan = mechanism.plan(parse(mask), Range(length), like=q)
        entry: dict[str, Any] = {"backend": plan.backend}
        try:
            got = run(mechanism, plan, tensors, few)
            got[0] = got[0][:, :, rows]
            entry["error"] = {what: distance(*each) for what, *each in zip(NAMES, got, wanted, strict=True)}
            del got
            entry |= timed(lambda m=mechanism, p=plan: run(m, p, tensors, upstream), cuda)
        except torch.OutOfMemoryError:
            entry["error"] = "out of memory"
        found[name] = entry
    return found | {"scores": length**2 * dtype.itemsize}


def run(mechanism: Softmax, plan: Plan, tensors: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    """The values and the gradients of q, k and v."""
    q, k, v = tensors
    values = mechanism(q, k, v, plan).values
    return [values.detach(), *torch.autograd.grad(values, tensors, upstream)]


def exact(mask: Mask, tensors: tuple[Tensor, ...], upstream: Tensor, rows: Tensor) -> list[Tensor]:
    """In float64, a head at a time: the values of some rows, and all gradients of a loss over these."""
    length = tensors[0].shape[2]
    slots = Range(length)
    by_head: list[list[Tensor]] = []
    for head in range(tensors[0].shape[1]):
        q, k, v = (x[0, head].detach().double().requires_grad_() for x in tensors)
        pairs = make_pairs(slots, slots, heads=1, device=q.device, batch=1)
        index = pairs.q.order.flatten()[rows][None, None, :, None]
        some = pairs._replace(q=type(pairs.q)(index, torch.zeros_like(index), index))
        scores = q[rows] @ k.T / q.shape[1] ** 0.5
        values = scores.masked_fill(~mask.allows(some)[0, 0], float("-inf")).softmax(-1) @ v
        gradients = torch.autograd.grad(values, (q, k, v), upstream[0, head, rows].double())
        by_head.append([values.detach(), *gradients])
    return [torch.stack(parts)[None] for parts in zip(*by_head, strict=True)]


def distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found.double() - expected).norm() / expected.norm())


def timed(work: Callable[[], object], cuda: bool) -> dict[str, float | int]:
    """Seconds of one pass, and the bytes that it takes on a GPU at most."""
    taken, before = [], 0
    for _ in range(1 + ROUNDS):
        if cuda:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    numbers: dict[str, float | int] = {"seconds": statistics.median(taken[1:])}
    return numbers | ({"bytes": torch.cuda.max_memory_allocated() - before} if cuda else {})


if __name__ == "__main__":
    main()
