"""Generation speed, batch 1, greedy: `python -m bench.generation --device cpu`, or `--device cuda`.

On the CPU: GPT-2-small's architecture in float32, a prompt of 64 tokens and 128 more, in turns with `generate` of
`transformers`, and against the machine's own memory bandwidth (a token reads every weight once). On a GPU: Llama-style
models of 124M and 1.1B parameters in bfloat16, each step a compiled CUDA graph, beside the best of `transformers`.
Results are printed and kept in `latest.json`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.interleave import LATEST, Contender, Entry, add_rounds, compare, interleave, save, show

PROMPT, MORE = 64, 128
LLAMA = {
    "124M": {"vocabulary": 50_304, "context": 1024, "layers": 12, "heads": 12, "width": 768, "feedforward": "swiglu"},
    "1.1B": {
        "vocabulary": 32_000,
        "context": 2048,
        "layers": 22,
        "heads": 32,
        "kv_heads": 4,
        "width": 2048,
        "feedforward": {"kind": "swiglu", "ratio": 2.75},
        "tied": False,
    },
}  # 1.1B: TinyLlama's sizes


def ours_on_cpu() -> Callable[[], object]:
    """GPT-2 small, through the same decoding as `regard generate`."""
    from regard.generate import Sampling, sampling_decoder
    from regard.models.presets import PRESETS

    torch.manual_seed(1)
    model: Any = PRESETS["gpt2"].build().eval()
    prompt = torch.randint(50_257, (PROMPT,), generator=torch.Generator().manual_seed(2)).tolist()
    return lambda: [tokens.tolist() for tokens in sampling_decoder(model, [prompt], MORE, Sampling(0.0))]


def transformers_on_cpu() -> Callable[[], object]:
    """`transformers`' GPT-2 with its own `generate`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    prompt = torch.randint(50_257, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    settings: dict[str, Any] = {"max_new_tokens": MORE, "min_new_tokens": MORE, "do_sample": False, "pad_token_id": 0}
    settings["attention_mask"] = torch.ones_like(prompt)
    return lambda: model.generate(prompt, **settings)  # type: ignore[operator] (a method of `transformers`, which is untyped)


def bandwidth() -> float:
    """Bytes/s at which this CPU reads matrices that fit no cache, in a product with one row, the fastest way it has."""
    from regard.nn.fused.onednn import AVAILABLE, product

    matrices, row = torch.randn(64, 3072, 768), torch.randn(1, 768)
    ways = [torch.nn.functional.linear, *([product] if AVAILABLE else [])]
    rates = []
    for way in ways * 5:
        began = time.perf_counter()
        for matrix in matrices:
            way(row, matrix)
        rates.append(matrices.numel() * matrices.element_size() / (time.perf_counter() - began))
    return max(rates)


def on_cpu(chosen: argparse.Namespace) -> None:
    """Ours and `transformers` in turns, then the share of the bandwidth."""
    torch.set_num_threads(chosen.threads)
    field = [Contender("ours", ours_on_cpu(), MORE), Contender("transformers generate", transformers_on_cpu(), MORE)]
    rates = interleave(field, chosen.rounds, 1.0, warmup=1, progress=lambda line: print(line, file=sys.stderr))
    entries = compare("generation on cpu", "GPT-2 small, 64 + 128, float32", rates, "ours", ["transformers generate"])
    show(entries)
    read = statistics.median(rates["ours"]) * 4 * 124_439_808
    limit = bandwidth()
    print(f"weights are read at {read / 1e9:.1f} GB/s; the machine reads {limit / 1e9:.1f} GB/s: {read / limit:.0%}")
    save(entries, chosen.out)


def on_gpu(chosen: argparse.Namespace) -> None:
    """Tokens/s of a compiled step in a CUDA graph."""
    from regard.config import load
    from regard.generate.cuda_graph import GraphedStep, reset_state
    from regard.models import GPTConfig

    entries = []
    for name, sizes in ((name, LLAMA[name]) for name in chosen.models.split(",")):
        torch.manual_seed(1)
        with torch.device("cuda"):
            model = load(GPTConfig, {**sizes, "qk_norm": False, "zero_init": False}).build()
        model.bfloat16().eval()
        began = time.perf_counter()
        state = model.start(1, 512, fixed=True)
        step = GraphedStep(model, state, lambda logits: logits.argmax(-1))
        ready = time.perf_counter() - began
        prompt = torch.randint(32_000, (1, PROMPT), device="cuda")
        rates = []
        for _ in range(5):  # each time 64 + 128 tokens, from the beginning
            reset_state(state)
            logits, _ = model.step(prompt, state)
            step.token.copy_(logits[:, -1].argmax(-1, keepdim=True))
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(MORE):
                step()
            torch.cuda.synchronize()
            rates.append(MORE / (time.perf_counter() - began))
        rate = statistics.median(rates)
        size = 2 * sum(p.numel() for p in model.parameters())
        print(
            f"{name}: {rate:,.0f} tokens/s, {rate * size / 1e12:.2f} TB/s of weights, ready in {ready:.0f} s",
            flush=True,
        )
        best = {"124M": 612.0, "1.1B": 346.0}[name]  # `transformers`, static cache and compiled, measured before
        peer = "transformers, static cache, compiled (measured apart)"
        setting = f"Llama-style {name}, bf16, batch 1, memory for 512"
        entries.append(Entry("generation on cuda", setting, rate, best, peer, rate / best, rate / best, rate / best))
        del model, state, step, logits
        torch.cuda.empty_cache()
    save(entries, chosen.out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    add_rounds(parser, 7)
    parser.add_argument("--models", default=",".join(LLAMA), help="on a GPU: which sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=LATEST)
    chosen = parser.parse_args()
    (on_cpu if chosen.device == "cpu" else on_gpu)(chosen)


if __name__ == "__main__":
    main()
