"""Faults of attention scores: collapsed or uniform heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Softmax, SoftmaxNormalizer
from regard.look import attentions, heads
from regard.models import LuongConfig, Seq2SeqConfig
from regard.nn.blocks.block import PostNormConfig
from regard.train.engine import Engine
from run_faults.kit import Case, Fault, Sabotage, Seen, altered, gpt, mistranslated, translation
from run_faults.sabotage import changed_output, parameter, softmax

LUONG = Seq2SeqConfig(context=64, width=32, dropout=0.0, attention=LuongConfig())


def sharpened(block: int, factor: float) -> Sabotage:
    """Queries and keys of one layer so many times too large: the softmax takes one key and ignores the rest."""

    def change(weight: Tensor) -> None:
        weight[: weight.shape[0] * 2 // 3] *= factor

    return parameter(f"blocks.{block}.attention.qkv.weight", change)


def flattened(block: int) -> Sabotage:
    """A scale that is almost zero: every key gets the same weight, whatever the query."""

    def sabotage(engine: Engine) -> None:
        softmax(engine, block).scale = 1e-4

    return sabotage


def pooled(x: Tensor) -> Tensor:
    """The mean over all places [B, S, C], at every place."""
    return x.mean(1, keepdim=True).expand_as(x)


def crossing(seen: Seen) -> list[float]:
    """Of each head that looks at the source, its entropy as a share of the greatest possible one."""
    batch = seen.batch()
    found = attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths))
    return [head.spread for head in heads(found) if ".cross." in head.name]


@torch.no_grad()
def unit_embeddings(engine: Engine) -> None:
    """Embeddings as PyTorch draws them, of unit variance, for a model that multiplies them by the root of its width."""
    for path in ("embed_source", "embed"):
        nn.init.normal_(engine.model.get_parameter(f"{path}.weight"))


def only_the_first_collapse(seen: Seen) -> bool:
    """Self-attention over embeddings has next to no entropy, and all other attention has a lot."""
    batch = seen.batch()
    found = heads(attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths)))
    first = [head.spread for head in found if ".0.attention" in head.name]
    return max(first) < 0.1 and all(head.spread > 0.3 for head in found if ".0.attention" not in head.name)


def cooled(path: str, factor: float, least: float) -> Sabotage:
    """The softmax of one module gets colder with every update, down to `least`."""

    def sabotage(engine: Engine) -> None:
        module = engine.model.get_submodule(path)
        mechanism = module.get_submodule("mechanism")
        assert isinstance(mechanism, Softmax)

        def cool(module: nn.Module, given: Any) -> None:
            mechanism.normalizer = SoftmaxNormalizer(max(factor**engine.progress.step, least))

        module.register_forward_pre_hook(cool)

    return sabotage


def looks_at_one_place(seen: Seen) -> bool:
    """The decoder's attention has no entropy left."""
    batch = seen.batch()
    found = attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths))
    return max(head.spread for head in heads(found)) < 0.05


FAULTS: list[Fault] = [
    Fault(
        "scores too large",
        "attention_entropy",
        r"blocks\.1\.attention",
        "Queries and keys of one layer are far too large: each row has all its weight on one key.",
        altered(sharpened(1, 40.0), gpt(qk_norm=False)),
        shows=lambda seen: max(seen.spreads("blocks.1")) < 0.1 < min(seen.spreads("blocks.0")),
    ),
    Fault(
        "embeddings scaled twice",
        "attention_entropy",
        r"(?:encoder|decoder)\.0\.attention",
        "Embeddings of unit variance times the root of the width, and no norm before the first layer.",
        mistranslated(unit_embeddings, tied=False, block=PostNormConfig()),
        shows=only_the_first_collapse,
        listed=False,
    ),
    Fault(
        "cooled too soon",
        "attention_entropy",
        r"\bdecoder\b",
        "The temperature of the attention falls with every update until it looks at one place only.",
        lambda folder: Case(translation(folder, LUONG), cooled("decoder", 0.8, 1e-3)),
        shows=looks_at_one_place,
        listed=False,
    ),
    Fault(
        "scale almost zero",
        "attention_entropy",
        r"blocks\.1\.attention",
        "The scores of one layer are scaled to nothing: its heads take the mean of all they see.",
        altered(flattened(1)),
        shows=lambda seen: min(seen.spreads("blocks.1")) > 0.999 > max(seen.spreads("blocks.0")),
    ),
    Fault(
        "memory pooled",
        "attention_entropy",
        r"decoder\.\d\.cross",
        "A mean over the sentence, left in from another task: the decoder finds the same key at every place.",
        mistranslated(changed_output("norm_source", pooled)),
        shows=lambda seen: min(crossing(seen)) > 0.999,
        listed=False,
    ),
]
