"""Causal linear attention against others' forms of it: `python -m bench.linear --device cpu --rounds 15`.

Forward and backward, on the same inputs, each peer's output first compared with ours in float32; where the timing is
in bfloat16, what that costs each of them is printed. The peers:

* `transformers MiniMax`: the lightning attention of `transformers` (Qin et al. 2024) as a whole layer, with its decay
  set to one; ours is the same layer with the same weights and only the chunks exchanged.
* `chunks, autograd`: the chunked formula in plain torch, differentiated by autograd, chunks of 64, as
  flash-linear-attention publishes it for checking its kernels.
* `flash-linear-attention`: its Triton kernels (`chunk_linear_attn`), on a GPU, where the package `fla` is found.

`--memory` prints instead what one forward and backward pass holds at most, per token, up to 65,536 tokens.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.interleave import LATEST, Contender, Entry, add_rounds, compare, interleave, save, show
from regard.attention import Causal, Range
from regard.attention.mechanisms.linear import LinearAttention
from regard.train.guard import keep_freed_memory

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v [B, H, N, D] to [B, H, N, D]


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    tokens: int
    width: int  # of a head

    @property
    def work(self) -> int:
        return self.batch * self.tokens


SETTINGS = {
    "cpu": {"short": Sizes(16, 4, 256, 32), "long": Sizes(2, 8, 2048, 64)},
    "cuda": {"long": Sizes(8, 16, 4096, 64), "very long": Sizes(1, 16, 65_536, 64)},
}


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mechanism = LinearAttention()
    return mechanism(q, k, v, mechanism.plan(Causal(), Range(q.shape[2]), like=q)).values


def chunks_with_autograd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = (q * k.cumsum(-2)).sum(-1, keepdim=True)
    q, k, v = (x.unflatten(-2, (-1, 64)) for x in (q, k, v))
    sums = (k.mT @ v).cumsum(2)
    sums = torch.cat((torch.zeros_like(sums[:, :, :1]), sums[:, :, :-1]), dim=2)
    ahead = torch.ones(64, 64, dtype=torch.bool, device=q.device).triu(1)
    mixed = q @ sums + (q @ k.mT).masked_fill(ahead, 0) @ v
    return mixed.flatten(2, 3) / (total + 1e-10)


def flash_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.linear_attn import chunk_linear_attn  # type: ignore[import-not-found] (a peer, not installed by default)

    q, k, v = (x.transpose(1, 2) for x in (F.elu(q) + 1, F.elu(k) + 1, v))
    return chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0].transpose(1, 2)


def lightning(sizes: Sizes, device: str) -> tuple[nn.Module, nn.Module]:
    """The layer of `transformers`, and ours with its weights."""
    from transformers.models.minimax.modeling_minimax import MiniMaxConfig, MiniMaxLightningAttention

    width = sizes.heads * sizes.width
    config = MiniMaxConfig(hidden_size=width, num_attention_heads=sizes.heads, num_key_value_heads=sizes.heads)
    config.head_dim, config.layer_types, config.num_hidden_layers = sizes.width, ["linear_attention"], 1
    theirs: Any = MiniMaxLightningAttention(config, 0).to(device)
    theirs.slope_rate.fill_(1e-30)  # exp(-1e-30) is one; of a plain zero it would make a mask that sees the future
    for name, value in zip(
        ("query_decay", "key_decay", "diagonal_decay"), theirs.decay_factors(theirs.slope_rate), strict=True
    ):
        getattr(theirs, name).copy_(value)
    return cast(nn.Module, theirs), OurLightning(theirs)


class OurLightning(nn.Module):
    """That layer, with our sums in the place of its chunks."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer, self.mechanism = layer, LinearAttention("identity", normalize=False)

    def forward(self, x: Tensor, *_: Any) -> tuple[Tensor]:
        layer = self.layer
        heads = layer.act_fn(layer.qkv_proj(x)).unflatten(-1, (layer.num_attention_heads, -1)).transpose(1, 2)
        plan = self.mechanism.plan(Causal(), Range(x.shape[1]), like=x)
        mixed = self.mechanism(*heads.chunk(3, dim=-1), plan).values.transpose(1, 2).flatten(2)
        return (layer.out_proj(torch.sigmoid(layer.output_gate(x)) * layer.norm(mixed)),)


def drawn(sizes: Sizes, device: str, dtype: torch.dtype) -> list[Tensor]:
    """q, k and v as a layer makes them: [B, N, H, D] in memory."""
    g = torch.Generator().manual_seed(3)
    shape = (3, sizes.batch, sizes.tokens, sizes.heads, sizes.width)
    return [x.to(device, dtype).requires_grad_() for x in torch.randn(shape, generator=g)]


def step_of(mix: Mix, inputs: list[Tensor]) -> Callable[[], Tensor]:
    upstream = torch.ones_like(inputs[0].transpose(1, 2))

    def step() -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in inputs)
        out = mix(q, k, v)
        torch.autograd.grad(out, inputs, upstream)
        return out

    return step


def step_of_layer(layer: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    weights = [*layer.parameters(), x]

    def step() -> Tensor:
        out = layer(x, None, None)[0]
        torch.autograd.grad(out.sum(), weights)
        return out

    return step


def off(got: Tensor, want: Tensor) -> float:
    """The greatest difference, as a share of the greatest value."""
    return float((got - want).abs().max() / want.abs().max())


def alike(got: Tensor, want: Tensor, tolerance: float = 1e-4) -> None:
    if not off(got, want) < tolerance:
        raise SystemExit(
            f"the outputs differ by {off(got, want):.1e} of the greatest: these two do not compute the same"
        )


def same_in_float32(mixes: dict[str, Mix], sizes: Sizes) -> None:
    """On a GPU: all the same in float32 (kernels may round products to TF32), and what bfloat16 loses."""
    drawn32 = drawn(sizes, "cuda", torch.float32)
    want = step_of(mixes["ours"], drawn32)()
    for name, mix in mixes.items():
        alike(step_of(mix, drawn32)(), want, tolerance=5e-3)
        narrow = [x.detach().bfloat16().requires_grad_() for x in drawn32]
        wide = [x.detach().float().requires_grad_() for x in narrow]
        lost = off(step_of(mix, narrow)().float(), step_of(mixes["ours"], wide)())
        print(f"{name} in bfloat16 is off by {lost:.1e} of the greatest value")


def against(name: str, sizes: Sizes, device: str, rounds: int, seconds: float, compiled: bool) -> list[Entry]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    inputs = drawn(sizes, device, dtype)
    mixes: dict[str, Mix] = {"ours": ours, "chunks, autograd": chunks_with_autograd}
    if device == "cuda" and importlib.util.find_spec("fla"):
        mixes["flash-linear-attention"] = flash_linear_attention
    if device == "cuda":
        same_in_float32(mixes, sizes)
    if compiled:
        mixes = {name: torch.compile(mix, fullgraph="flash" not in name) for name, mix in mixes.items()}
    steps = {name: step_of(mix, inputs) for name, mix in mixes.items()}
    pairs = [(steps, list(steps)[1:])]
    if importlib.util.find_spec("transformers") and device == "cpu":
        torch.manual_seed(1)
        theirs, mine = lightning(sizes, device)
        x = torch.randn(sizes.batch, sizes.tokens, sizes.heads * sizes.width, device=device, requires_grad=True)
        layers = {"ours": step_of_layer(mine, x), "transformers MiniMax": step_of_layer(theirs, x)}
        pairs.append((layers, ["transformers MiniMax"]))
    entries = []
    for contenders, peers in pairs:
        if device == "cpu":
            for peer in peers:
                alike(contenders["ours"](), contenders[peer]())
        rates = interleave(
            [Contender(each, step, sizes.work) for each, step in contenders.items()],
            rounds=rounds,
            seconds=seconds,
            synchronize=torch.cuda.synchronize if device == "cuda" else lambda: None,
            progress=lambda line: print(line, file=sys.stderr),
        )
        setting = f"{device}, {name}: {sizes.batch} x {sizes.tokens} tokens, {sizes.heads} heads of {sizes.width}"
        entries += compare("linear attention", setting + (", compiled" if compiled else ""), rates, "ours", peers)
    return entries


def peak(tokens: int) -> float:
    """MiB that one pass over so many tokens adds to a fresh process at most."""
    unit = 1024 if sys.platform.startswith("linux") else 1
    step_of(ours, drawn(Sizes(1, 8, 64, 64), "cpu", torch.float32))()
    inputs = drawn(Sizes(1, 8, tokens, 64), "cpu", torch.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    step_of(ours, inputs)()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before) / 2**20


def memory() -> None:
    for tokens in (8192, 16_384, 32_768, 65_536):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            mebibytes = pool.apply(peak, (tokens,))
        print(
            f"{tokens:>7,} tokens, 8 heads of 64: {mebibytes:>8,.0f} MiB, {mebibytes * 1024 / tokens:.1f} KiB a token"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=list(SETTINGS))
    parser.add_argument("--settings", default=None, help="by commas; all of the device's by default")
    add_rounds(parser)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a contender's turn lasts")
    parser.add_argument("--compiled", action="store_true", help="everyone through torch.compile")
    parser.add_argument("--memory", action="store_true", help="print memory instead of speed")
    parser.add_argument("--out", type=Path, default=LATEST, help="where results are kept")
    asked = parser.parse_args()
    if asked.memory:
        return memory()
    keep_freed_memory()
    known = SETTINGS[asked.device]
    entries: list[Entry] = []
    for name in asked.settings.split(",") if asked.settings else known:
        entries += against(name, known[name], asked.device, asked.rounds, asked.seconds, asked.compiled)
    show(entries)
    save(entries, asked.out)
    return None


if __name__ == "__main__":
    main()
