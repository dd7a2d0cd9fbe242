"""Window attention against its peers: `python -m bench.window --device cpu`, or `--device cuda`.

On the CPU: window 512 at N = 16,384 against full causal SDPA, 8 heads x 64, float32. On a GPU: window 1,024 at
N = 131,072 against compiled FlexAttention called by hand, 16 heads x 64, bf16, and how long the block layout takes.
Forward and backward, in turns.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional as F

from bench.interleave import LATEST, Contender, add_rounds, compare, interleave, save, show
from regard.attention import Causal, Range, Softmax, Window

SIZES = {"cpu": (16_384, 8, 512, torch.float32), "cuda": (131_072, 16, 1024, torch.bfloat16)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=SIZES)
    add_rounds(parser, 6)
    chosen = parser.parse_args()
    length, heads, size, dtype = SIZES[chosen.device]
    torch.manual_seed(1)
    shape = (1, heads, length, 64)
    q, k, v, up = (torch.randn(shape, device=chosen.device, dtype=dtype) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    softmax, mask = Softmax(), Causal() & Window(size)
    softmax.plan(mask, Range(length), like=q)  # the first one imports and compiles
    synchronize = torch.cuda.synchronize if chosen.device == "cuda" else lambda: None
    synchronize()
    began = time.perf_counter()
    plan = softmax.plan(mask, Range(length), like=q)
    synchronize()
    print(f"layout: {(time.perf_counter() - began) * 1e3:.1f} ms, backend {plan.backend}")

    def ours() -> None:
        torch.autograd.grad(softmax(q, k, v, plan).values, (q, k, v), up)

    def full() -> None:
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), up)

    if chosen.device == "cuda":
        peer, name = by_hand(q, k, v, up, size), "FlexAttention by hand, compiled"
    else:
        peer, name = full, "full causal SDPA"
    contenders = [Contender("ours", ours, length), Contender(name, peer, length)]
    rates = interleave(contenders, chosen.rounds, 0.5, 1, synchronize, lambda line: print(line, flush=True))
    setting = f"window {size}, N = {length:,}, {heads} x 64, {str(dtype).split('.')[1]}, forward + backward"
    entries = compare(f"window on {chosen.device}", setting, rates, "ours", [name])
    show(entries)
    save(entries, LATEST)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, up: torch.Tensor, size: int):
    """What a user of PyTorch would write."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = q.shape[2]
    blocks = torch.compile(create_block_mask)(
        lambda b, h, i, j: (i >= j) & (i - j < size), None, None, length, length, device="cuda"
    )
    kernel = torch.compile(flex_attention)
    return lambda: torch.autograd.grad(kernel(q, k, v, block_mask=blocks), (q, k, v), up)


if __name__ == "__main__":
    main()
