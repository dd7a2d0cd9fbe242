"""A document of 131,072 tokens: `python -m bench.document --device cuda` trains on it, `--device cpu` streams it.

On a GPU a small model with window attention takes one whole document forward and backward. On a CPU the same model
reads it as a stream, a piece at a time through its rolling memory; the peak is the process's own high-water mark,
PyTorch included.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from regard.attention import Range, WindowConfig
from regard.data import TextBatch
from regard.models import GPTConfig
from regard.tasks import LanguageTask

LENGTH, PIECE = 131_072, 16


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--length", type=int, default=LENGTH)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.manual_seed(1)
    window = WindowConfig(1024 if device.type == "cuda" else 256)
    config = GPTConfig(vocabulary=256, context=chosen.length, layers=4, heads=4, width=256, attention=window)
    model = config.build().to(device)
    tokens = torch.randint(256, (1, chosen.length + 1), device=device)
    (train if device.type == "cuda" else stream)(model, tokens)


def train(model, tokens: torch.Tensor) -> None:
    """Forward and backward over the whole document, twice: the first compiles kernels."""
    for number in range(3):
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            term = LanguageTask().terms(model, TextBatch(tokens[:, :-1], tokens[:, 1:], Range(tokens.shape[1] - 1)))[
                "next_token"
            ]
        (term.total / term.count).backward()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30
        loss = float(term.total / term.count)
        print(f"step {number}: loss {loss:.3f}, {time.perf_counter() - began:.2f} s, {peak:.2f} GiB", flush=True)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def stream(model, tokens: torch.Tensor) -> None:
    """Token by token in small pieces, with what has been read forgotten."""
    model.eval()
    began, state = time.perf_counter(), model.start(1, tokens.shape[1])
    total, length = 0.0, tokens.shape[1] - 1
    for low in range(0, length, PIECE):
        piece = tokens[:, low : min(low + PIECE, length)]
        logits, state = model.step(piece, state)
        wanted = tokens[0, low + 1 : low + 1 + piece.shape[1]]
        total += float(torch.nn.functional.cross_entropy(logits[0], wanted, reduction="sum"))
        if low % (length // 8 // PIECE * PIECE) == 0:
            print(f"{low:,} tokens, {time.perf_counter() - began:.0f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    spent = time.perf_counter() - began
    rate, loss = length / spent, total / length
    print(f"{length:,} tokens in {spent:.0f} s ({rate:,.0f} tokens/s), {loss:.3f} nats, {peak:.2f} GiB")


if __name__ == "__main__":
    main()
