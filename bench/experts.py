"""Mixtures of experts against `transformers`: `python -m bench.experts --device cpu --rounds 15`.

One layer of Mixtral's kind (SwiGLU, gates that sum to one), forward and backward, on the same random tokens with the
same weights; that all give the same answers and gradients is checked first. The peer is `MixtralSparseMoeBlock` with
two of its implementations: a loop over experts ("eager") and grouped products (batched ones copy the experts' matrices
for every token, gigabytes here). x-transformers has no mixture of experts. On the CPU in float32, eager; on a GPU in
bfloat16, eager and compiled, after a check in float32 too: in bfloat16 near ties are routed to different experts.
Results are printed and kept in `latest.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from bench.interleave import Contender, compare, save, show
from bench.settings import add_settings, chosen_settings, interleave_setting, prepare_process
from regard.nn.experts.moe import MoEConfig


@dataclass(frozen=True)
class Sizes:
    """Of one layer and its batch."""

    width: int
    hidden: int
    batch: int
    context: int
    experts: int = 8
    active: int = 2

    @property
    def tokens(self) -> int:
        """In one step."""
        return self.batch * self.context


SETTINGS: dict[str, dict[str, Sizes]] = {
    "cpu": {
        "small": Sizes(width=128, hidden=256, batch=8, context=256),
        "large": Sizes(width=512, hidden=1024, batch=4, context=256),
        "many": Sizes(width=256, hidden=128, batch=8, context=256, experts=32, active=4),
    },
    "cuda": {
        "base": Sizes(width=768, hidden=2048, batch=32, context=1024),
        "many": Sizes(width=1024, hidden=512, batch=16, context=1024, experts=64, active=8),
    },
}
OURS = "ours"
PEERS = ("eager", "grouped_mm")


def ours(sizes: Sizes) -> nn.Module:
    """Through the config, as anyone would make it."""
    config = MoEConfig(ratio=sizes.hidden / sizes.width, experts=sizes.experts, active=sizes.active)
    return config.build(sizes.width, bias=False)


def mixtral(sizes: Sizes, implementation: str) -> nn.Module:
    """`transformers`' block."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.hidden,
        num_local_experts=sizes.experts,
        num_experts_per_tok=sizes.active,
    )
    config._experts_implementation = implementation
    return MixtralSparseMoeBlock(config)


def give(layer: nn.Module, sizes: Sizes) -> None:
    """The same weights to everyone, whatever they call them; in both, in the order router, up, down."""
    source = torch.Generator().manual_seed(7)
    router = torch.randn(sizes.experts, sizes.width, generator=source) / sizes.width**0.5
    up = torch.randn(sizes.experts, 2 * sizes.hidden, sizes.width, generator=source) / sizes.width**0.5
    down = torch.randn(sizes.experts, sizes.width, sizes.hidden, generator=source) / sizes.hidden**0.5
    theirs = {"gate.weight": router, "experts.gate_up_proj": up, "experts.down_proj": down}
    mine = {"router.weight": router, "gate_up.weight": up.flatten(0, 1), "down.weight": down.flatten(0, 1)}
    layer.load_state_dict(mine if hasattr(layer, "router") else theirs)


def passes(layer: nn.Module, batches: list[Tensor], upstream: Tensor, compiled: bool) -> Callable[[], list[Tensor]]:
    """Forward and backward: answers and all gradients. Other tokens each time, so that experts get more or fewer."""
    call: Any = torch.compile(layer, fullgraph=True) if compiled else layer
    data = cycle(batches)

    def step() -> list[Tensor]:
        x = next(data).requires_grad_()
        layer.zero_grad(set_to_none=True)
        x.grad = None
        out = call(x)
        out.backward(upstream)
        grads = [
            p.grad
            for name in ("router", "gate.weight", "gate_up", "down")
            for n, p in layer.named_parameters()
            if name in n
        ]
        return [out.detach(), x.grad, *grads]  # type: ignore[list-item] (the input has a gradient after backward)

    return step


def agree(steps: dict[str, Callable[[], list[Tensor]]], tolerance: float) -> None:
    """That everyone computes the same: answers, and gradients of tokens and of each matrix."""
    first, *others = ((name, step()) for name, step in steps.items())
    for name, computed in others:
        for found, same in zip(computed, first[1], strict=True):
            error = float((found.flatten() - same.flatten()).norm() / same.norm())
            if error > tolerance:
                raise SystemExit(f"{name} computes something else: a relative difference of {error:.2g}")


def run(chosen: argparse.Namespace, setting: str, compiled: bool) -> None:
    """One setting: build, check, interleave, show, save."""
    device, sizes = chosen.device, SETTINGS[chosen.device][setting]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    # The loop depends on the data and cannot be compiled as one graph.
    peers = [peer for peer in PEERS if peer != "eager" or not compiled]
    layers = {OURS: ours(sizes), **{f"transformers, {peer}": mixtral(sizes, peer) for peer in peers}}
    source = torch.Generator().manual_seed(1)
    drawn = torch.randn(17, sizes.batch, sizes.context, sizes.width, generator=source).to(device, dtype)
    *batches, upstream = drawn.unbind()
    for layer in layers.values():
        give(layer, sizes)
        layer.to(device).train()
    if dtype != torch.float32 and not compiled:  # their grouped products take no float32 on a GPU
        wide = {name: layer for name, layer in layers.items() if "grouped" not in name}
        agree({n: passes(layer, [drawn[0].float()], upstream.float(), False) for n, layer in wide.items()}, 1e-3)
    steps = {}
    for name, layer in layers.items():
        layer.to(dtype)
        steps[name] = passes(layer, [x.clone() for x in batches], upstream, compiled)
    agree(steps, 0.1 if dtype == torch.bfloat16 else 1e-4)
    rates = interleave_setting(chosen, setting, [Contender(n, step, sizes.tokens) for n, step in steps.items()])
    how = ", compiled" if compiled else ""
    entries = compare(f"experts on {device}", f"{setting}{how}", rates, OURS, [n for n in layers if n != OURS])
    show(entries)
    save(entries, chosen.out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser, SETTINGS)
    chosen = parser.parse_args()
    settings = chosen_settings(parser, chosen, SETTINGS)
    prepare_process(chosen)
    for setting in settings:
        for compiled in (False, True) if chosen.device == "cuda" else (False,):
            run(chosen, setting, compiled)


if __name__ == "__main__":
    main()
