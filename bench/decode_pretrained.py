"""Decoding speed of a pretrained model on a CPU: `python -m bench.decode_pretrained [RUN]`.

A run (default: SmolLM2, imported as `smollm2`), in float32 and with int8 weights, in turns with `transformers` reading
the same weights (the run exported to a folder): batch 1, 64 new tokens, greedy, one process. The greedy tokens in
float32 must be the same. Results are printed, in tokens per second of wall time and of CPU time, and kept in
`latest.json`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.interleave import LATEST, Contender, add_rounds, compare, interleave, save, show
from regard.cli import main as regard
from regard.commands.common import RUNS, open_run
from regard.generate import Sampling, sampling_decoder
from regard.generate.load import load_model
from regard.nn.fused import install
from regard.nn.quantized import Int8Config, quantize

NEW = 64
PROMPT = "Call me Ishmael. Some years ago, never mind how long precisely"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    add_rounds(parser, 7)
    parser.add_argument("--out", type=Path, default=LATEST)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    from transformers import AutoModelForCausalLM

    loaded = load_model(open_run(chosen.run, RUNS))
    prompt = loaded.tokenizer.encode(PROMPT).tolist()
    with tempfile.TemporaryDirectory() as folder:
        regard(["export", chosen.run, str(Path(folder) / "hub")])
        theirs: Any = AutoModelForCausalLM.from_pretrained(Path(folder) / "hub", dtype=torch.float32).eval()
    small: Any = copy.deepcopy(loaded.model)
    quantize(small, Int8Config())
    install(small)

    def ours(model: Any) -> list[int]:
        return [tokens.tolist()[0] for tokens in sampling_decoder(model, [prompt], NEW, Sampling(0.0))]

    def peer() -> list[int]:
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        return theirs.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

    print(f"the same {NEW} greedy tokens in float32: {ours(loaded.model) == peer()}")
    steps = {"float32": lambda: ours(loaded.model), "int8": lambda: ours(small), "transformers": peer}
    spent: dict[str, list[float]] = {name: [] for name in steps}

    def timed(name: str) -> None:
        began = time.process_time()
        steps[name]()
        spent[name].append(time.process_time() - began)

    field = [Contender(name, lambda name=name: timed(name), NEW) for name in steps]
    rates = interleave(field, chosen.rounds, 0.0, warmup=1, progress=lambda line: print(line, file=sys.stderr))
    setting = f"{chosen.run}, {NEW} tokens, {chosen.threads} threads"
    entries = [
        entry
        for name in ("float32", "int8")
        for entry in compare("decoding pretrained", f"{setting}, {name}", rates, name, ["transformers"])
    ]
    show(entries)
    for name, times in spent.items():
        print(f"{name}: {1000 * statistics.median(times) / NEW:.1f} ms of CPU time per token")
    save(entries, chosen.out)


if __name__ == "__main__":
    main()
