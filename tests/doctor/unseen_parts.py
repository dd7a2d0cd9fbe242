"""What is done to the runs of unseen_runs.py: pairs to translate, batches and layers that go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fault_batches import planted, rare
from torch import Tensor, nn

from regard.attention import Range
from regard.data import PairBatch
from regard.nn import LayerNorm
from regard.nn.experts.moe import MixtureOfExperts
from regard.nn.experts.routing import route, share
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]
ELSEWHERE = -100  # what other libraries write where a target does not count


def sentences(seed: int, count: int) -> str:
    """Pairs of sentences, word for word: short words have long translations, so that lengths differ in a batch."""
    draw = random.Random(4)
    sounds = ("bdfgkl", "aei"), ("mnprst", "ouy")
    lexicon = [
        ["".join(draw.choice(c) + draw.choice(v) for _ in range(n)) for (c, v), n in zip(sounds, lengths, strict=True)]
        for lengths in ((1, 3), (3, 1)) * 20
    ]
    draw, lines = random.Random(seed), []
    for _ in range(count):
        chosen = draw.choices(lexicon, k=draw.randint(1, 7))
        lines.append("\t".join(" ".join(words) for words in zip(*chosen, strict=True)) + "\n")
    return "".join(lines)


def written_pairs(folder: Path) -> Path:
    """The pairs as a file."""
    path = folder / "pairs.tsv"
    path.write_text(sentences(1, 3000), encoding="utf-8")
    return path


def changed_output(path: str, change: Callable[[Tensor], Tensor]) -> Sabotage:
    """What one module gives passes through `change`."""

    def sabotage(engine: Engine) -> None:
        def after(module: nn.Module, given: Any, out: Tensor) -> Tensor:
            return change(out)

        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def rounded(x: Tensor) -> Tensor:
    """In steps of a sixteenth, as 8-bit numbers would have it; `round` has no slope anywhere."""
    return (x * 16).round() / 16


def pooled(x: Tensor) -> Tensor:
    """The mean over all places [B, S, C], at every place."""
    return x.mean(1, keepdim=True).expand_as(x)


def padding_seen(engine: Engine) -> None:
    """The encoder is not told how long its sentences are, and looks at padding as at any other token."""
    model: Any = engine.model
    plain = model._plan

    def plan(blocks: nn.ModuleList, mask: Any, queries: Any, keys: Any = None, *, like: Tensor) -> Any:
        queries = Range(queries.length) if blocks is model.encoder else queries
        return plain(blocks, mask, queries, keys, like=like)

    model._plan = plan


class Deviation(nn.Module):
    """A LayerNorm by hand, whose eps is added after the root: finite for equal numbers, but its slope is not."""

    def __init__(self, gain: nn.Parameter):
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.gain * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)


def zero_row(number: int) -> Sabotage:
    """The first block's norm is a `Deviation`, and batch `number` the first to have a character whose row is zero."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        block: Any = engine.model.get_submodule("blocks.0")
        assert isinstance(block.norm_attention, LayerNorm)
        block.norm_attention = Deviation(block.norm_attention.gain)
        engine.model.get_parameter("embed.weight")[rare(engine)] = 0.0
        planted(number, rare)(engine)

    return sabotage


def wrong_way(rate: float) -> Sabotage:
    """Routers are balanced by a bias (Wang et al. 2024) with the wrong sign: who has many tokens gets more of them."""

    def sabotage(engine: Engine) -> None:
        for layer in engine.model.modules():
            if isinstance(layer, MixtureOfExperts):
                drift(layer, rate)

    return sabotage


def drift(layer: MixtureOfExperts, rate: float) -> None:
    """A router's scores get a bias that each training batch moves."""
    plain, config, bias = layer._logits, layer.config, torch.zeros(layer.config.experts)

    def logits(rows: Tensor) -> Tensor:
        found = plain(rows) + bias
        if layer.training:
            chosen = route(found.detach(), config.active, layer.normalise).experts
            bias.add_(rate * (share(chosen, config.experts) - 1 / config.experts).sign())
        return found

    layer._logits = logits


def by_update(accumulate: int) -> Sabotage:
    """A loader that counts updates where it should count micro-batches: all parts of an update are the same one."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: plain(position // accumulate, **named)

    return sabotage


def marked_elsewhere(number: int) -> Sabotage:
    """One batch has its padding marked as other libraries do."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch

        def batch(position: int, **named: Any) -> PairBatch:
            found = plain(position, **named)
            marked = torch.where(found.targets < 0, ELSEWHERE, found.targets)
            return found._replace(targets=marked) if position == number else found

        engine.data.batch = batch

    return sabotage
