"""`regard generate`."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from pathlib import Path

from regard.commands.common import RUNS, RunName, open_run
from regard.errors import UserError


def generate(
    run: RunName = None,
    /,
    *,
    prompt: tuple[str, ...] = ("\n",),
    tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 1,
    device: str = "cpu",
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """Let a trained model write.

    Args:
        run: The run's folder or name; by default the newest run.
        prompt: What to go on from; several prompts are written on at once.
        tokens: How many tokens to write.
        temperature: Below 1 bolder guesses are rarer; 0 always takes the likeliest token.
        top_k: Choose among the k likeliest tokens only.
        seed: Decides the draws.
        device: Where to run: cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print the texts as JSON.
    """
    from regard.generate import Sampling, decode
    from regard.generate.load import load_writer

    try:
        sampling = Sampling(temperature, top_k)
    except ValueError as problem:
        raise UserError(f"--{str(problem).replace('top_k', 'top-k')}") from problem
    if tokens < 1:
        raise UserError(f"--tokens must be at least 1, not {tokens}")
    found = open_run(run, runs)
    model, tokenizer, step = load_writer(found, device)
    prompts = [tokenizer.encode(text).tolist() for text in prompt]
    streams = len(prompts) == 1 and not json
    written: list[list[int]] = [[] for _ in prompts]
    if streams:
        print(prompt[0], end="", flush=True)
    began = time.perf_counter()
    for row in decode(model, prompts, tokens, sampling, seed=seed, context=model.config.context, device=device):
        for text, token in zip(written, row, strict=True):
            text.append(token)
        if streams:
            print(tokenizer.decode(row), end="", flush=True)
    seconds = time.perf_counter() - began
    texts = [tokenizer.decode(text) for text in written]
    if json:
        made = [{"prompt": p, "text": t} for p, t in zip(prompt, texts, strict=True)]
        print(jsonlib.dumps({"run": str(found.path), "step": step, "seconds": seconds, "texts": made}))
    elif streams:
        print()
    else:
        for start, text in zip(prompt, texts, strict=True):
            print(f"--- {start!r}\n{start}{text}")
    print(f"{tokens * len(prompts) / seconds:,.0f} tokens/s", file=sys.stderr)
    return 0
