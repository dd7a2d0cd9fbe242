"""Training speed against the peers: `python -m bench.training --device cpu --settings small,large --rounds 15`.

On the CPU, at both sizes, float32 and two threads, eager: `transformers`, `x-transformers` and the plain model of
`plain_gpt2.py` against three of ours at the same sizes: with exactly GPT-2's parts (the comparison of implementations),
with lean parts (no biases, squared ReLU for GELU), and with our default parts (rotary, RMSNorm, normalised q and k). On
a GPU: GPT-2-small in bfloat16, everyone compiled as one graph. Results are printed and kept in `latest.json`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.interleave import Contender, compare, save, show
from bench.peers import PEERS, How, Loss, mean_loss, training_step
from bench.plain_gpt2 import Sizes
from bench.settings import add_settings, chosen_settings, interleave_setting, prepare_process

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
    rates = interleave_setting(chosen, setting, field, warmup=6 if on_gpu else 3)
    optimizer = "" if fused else ", default AdamW"
    for name in OURS:
        entries = compare(f"training on {device}", f"{setting}, {name}{optimizer}", rates, name, peers)
        show(entries)
        save(entries, chosen.out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser, SETTINGS)
    parser.add_argument("--peers", help="comma-separated names; default: every one that is installed")
    parser.add_argument("--default-optimizer", action="store_true", help="PyTorch's default AdamW for everyone")
    chosen = parser.parse_args()
    settings = chosen_settings(parser, chosen, SETTINGS)
    peers = chosen.peers.split(",") if chosen.peers else list(PEERS)
    if any(name not in PEERS for name in peers):
        parser.error(f"peers are {', '.join(PEERS)}")
    missing = [name for name in peers if name in PACKAGE and importlib.util.find_spec(PACKAGE[name]) is None]
    if missing:
        print(f"not installed, so left out: {', '.join(missing)}", file=sys.stderr)
    prepare_process(chosen)
    for setting in settings:
        run(chosen, setting, [name for name in peers if name not in missing])


if __name__ == "__main__":
    main()
