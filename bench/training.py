"""Training speed against the peers: `python -m bench.training --device cpu --settings small,large --rounds 15`.

On the CPU, at both sizes, float32 and two threads, eager: `transformers`, `x-transformers` and the plain model of
`plain_gpt2.py` against three of ours at the same sizes: with exactly GPT-2's parts (the comparison of implementations),
with lean parts (no biases, squared ReLU for GELU), and with our default parts (rotary, RMSNorm, normalised q and k). On
a GPU: GPT-2-small in bfloat16, everyone compiled as one graph. Results are printed and kept in `latest.json`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.interleave import LATEST, Contender, add_rounds, compare, interleave, save, show
from bench.peers import PEERS, How, Loss, mean_loss, training_step
from bench.plain_gpt2 import Sizes
from regard.train.guard import keep_freed_memory

SETTINGS: dict[str, dict[str, Sizes]] = {
    "cpu": {
        "small": Sizes(layers=4, heads=4, width=128, context=64, vocabulary=65, batch=12),
        "large": Sizes(layers=6, heads=6, width=384, context=256, vocabulary=65, batch=16),
    },
    "cuda": {"gpt2-small": Sizes(layers=12, heads=12, width=768, context=1024, vocabulary=50304, batch=32)},
}

#: What each of our rows asks of `GPTConfig` beyond the sizes.
OURS: dict[str, dict[str, object]] = {
    "same parts as GPT-2": {
        "position": "learned",
        "norm": "layer",
        "feedforward": "gelu",
        "bias": True,
        "qk_norm": False,
        "zero_init": False,
    },
    "lean parts": {
        "position": "learned",
        "norm": {"kind": "layer", "bias": False},
        "feedforward": "relu2",
        "qk_norm": False,
        "zero_init": False,
    },
    "our default parts": {},
}

#: The package each peer comes from; a peer that is not installed is left out, and the table says so.
PACKAGE = {"transformers GPT-2": "transformers", "x-transformers Decoder": "x_transformers"}


def ours(parts: dict[str, object]) -> Callable[[Sizes], tuple[nn.Module, Loss]]:
    """A builder of our GPT with the given parts, through the config, as anyone would make it."""

    def build(sizes: Sizes) -> tuple[nn.Module, Loss]:
        from regard.config import load
        from regard.models.gpt import GPTConfig

        shape = {name: getattr(sizes, name) for name in ("vocabulary", "context", "layers", "heads", "width")}
        model = load(GPTConfig, {**shape, **parts}).build()

        def loss(tokens: Tensor, targets: Tensor) -> Tensor:
            return mean_loss(model(tokens), targets)

        return model, loss

    return build


def contenders(sizes: Sizes, how: How, peers: list[str]) -> list[Contender]:
    """Ours first, then the peers; all with the same batches and the same optimizer."""
    builders = {**{name: ours(parts) for name, parts in OURS.items()}, **{name: PEERS[name] for name in peers}}
    return [Contender(name, training_step(build, sizes, how), sizes.tokens) for name, build in builders.items()]


def run(chosen: argparse.Namespace, setting: str, peers: list[str]) -> None:
    """One setting: build, interleave, show, save."""
    device, fused = chosen.device, not chosen.default_optimizer
    sizes = SETTINGS[device][setting]
    on_gpu = device == "cuda"
    how = How(device, bf16=on_gpu, compiled=on_gpu, fused=fused or None)
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    field = contenders(sizes, how, peers)
    rates = interleave(
        field,
        chosen.rounds,
        chosen.seconds,
        warmup=6 if on_gpu else 3,
        synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
        progress=lambda line: print(f"\r\033[K{setting}: {line}", end="", file=sys.stderr, flush=True),
    )
    print("\r\033[K", end="", file=sys.stderr)
    optimizer = "" if fused else ", default AdamW"
    for name in OURS:
        entries = compare(f"training on {device}", f"{setting}, {name}{optimizer}", rates, name, peers)
        show(entries)
        save(entries, chosen.out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SETTINGS), default="cpu")
    parser.add_argument("--settings", help="comma-separated; default: every setting of the device")
    add_rounds(parser)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a turn lasts in each round")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--peers", help="comma-separated names; default: every one that is installed")
    parser.add_argument("--default-optimizer", action="store_true", help="PyTorch's default AdamW for everyone")
    parser.add_argument("--out", type=Path, default=LATEST, help="where results are kept")
    chosen = parser.parse_args()
    settings = (chosen.settings or ",".join(SETTINGS[chosen.device])).split(",")
    unknown = [name for name in settings if name not in SETTINGS[chosen.device]]
    if unknown:
        parser.error(f"no setting {unknown[0]!r} on {chosen.device}; choose from {', '.join(SETTINGS[chosen.device])}")
    peers = chosen.peers.split(",") if chosen.peers else list(PEERS)
    if any(name not in PEERS for name in peers):
        parser.error(f"peers are {', '.join(PEERS)}")
    missing = [name for name in peers if name in PACKAGE and importlib.util.find_spec(PACKAGE[name]) is None]
    if missing:
        print(f"not installed, so left out: {', '.join(missing)}", file=sys.stderr)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()  # for everyone: it is a setting of the process
    busy = os.getloadavg()[0]
    if chosen.device == "cpu" and busy > 0.5:
        print(f"the machine is busy (load {busy:.1f}): expect wide intervals", file=sys.stderr)
    for setting in settings:
        run(chosen, setting, [name for name in peers if name not in missing])


if __name__ == "__main__":
    main()
