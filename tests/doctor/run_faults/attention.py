"""Faults of attention: scores, masks and positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Full, Pairs, RelativeBuckets, Softmax, SoftmaxNormalizer
from regard.attention.backends.choose import run
from regard.look import attentions, heads
from regard.models import LuongConfig, Seq2SeqConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.convolution import CausalConvolution
from regard.nn.positions.position import Sinusoidal, T5Config, sinusoids
from regard.train.engine import Engine
from run_faults.kit import Case, Fault, Sabotage, Seen, altered, gpt, mistranslated, translation
from run_faults.sabotage import CONVOLUTION, changed_output, parameter

LUONG = Seq2SeqConfig(context=64, width=32, dropout=0.0, attention=LuongConfig())


def sharpened(block: int, factor: float) -> Sabotage:
    """Queries and keys of one layer so many times too large: the softmax takes one key and ignores the rest."""

    def change(weight: Tensor) -> None:
        weight[: weight.shape[0] * 2 // 3] *= factor

    return parameter(f"blocks.{block}.attention.qkv.weight", change)


def softmax(engine: Engine, block: int) -> Softmax:
    """The mechanism of one layer."""
    found = engine.model.get_submodule(f"blocks.{block}.attention.mechanism")
    assert isinstance(found, Softmax)
    return found


def flattened(block: int) -> Sabotage:
    """A scale that is almost zero: every key gets the same weight, whatever the query."""

    def sabotage(engine: Engine) -> None:
        softmax(engine, block).scale = 1e-4

    return sabotage


def unmasked(engine: Engine) -> None:
    """All layers see the future: the causal mask is gone."""
    model: Any = engine.model
    model.masks = [Full() for _ in model.masks]


def unmasked_layer(block: int) -> Sabotage:
    """One layer ignores the mask that it is given."""

    def sabotage(engine: Engine) -> None:
        mechanism = softmax(engine, block)

        def forward(q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Any:
            seen = mechanism.plan(Full(), plan.queries, None, like=q)
            return run(mechanism.call(q, k, v, seen), mechanism.backend)

        mechanism.forward = forward

    return sabotage


def unturned(engine: Engine) -> None:
    """Rotary positions whose angles are all zero: nothing turns."""
    position: Any = engine.model.get_submodule("position")
    plain = position.rotation
    position.rotation = lambda phase: plain(phase * 0)


def order_is_lost(seen: Seen) -> bool:
    """The last token's logits are the same whatever the order of those before it."""
    tokens = seen.batch().inputs
    turned = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    with torch.no_grad():
        one, two = (seen.model(these)[:, -1] for these in (tokens, turned))
    return torch.allclose(one, two, atol=1e-4)


def pooled(x: Tensor) -> Tensor:
    """The mean over all places [B, S, C], at every place."""
    return x.mean(1, keepdim=True).expand_as(x)


def crossing(seen: Seen) -> list[float]:
    """Of each head that looks at the source, its entropy as a share of the greatest possible one."""
    batch = seen.batch()
    found = attentions(seen.model, lambda: seen.model(batch.inputs, batch.source, batch.source_lengths))
    return [head.spread for head in heads(found) if ".cross." in head.name]


def padding_seen(engine: Engine) -> None:
    """The encoder does not get the lengths of its sentences, and attends to padding."""
    model: Any = engine.model
    encode = model.encode
    model.encode = lambda source, lengths: encode(source, torch.full_like(lengths, source.shape[1]))


def padding_matters(seen: Seen) -> bool:
    """A sentence's memory is another one when there is more padding behind it."""
    batch, pad = seen.batch(), seen.ended.engine.data.specials.pad
    wider = F.pad(batch.source, (0, 4), value=pad)
    real = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    with torch.no_grad():
        one, two = (seen.model.encode(source, batch.source_lengths)[0] for source in (batch.source, wider))
    return not torch.allclose(one[real], two[:, : one.shape[1]][real], atol=1e-3)


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


def positions_of_rows(engine: Engine) -> None:
    """Waves that run along the first axis, as if the batch came second: all tokens of a row get the row's position."""

    def embed(x: Tensor, phase: Tensor) -> Tensor:
        return x + sinusoids(torch.arange(len(x)), x.shape[-1])[:, None].to(x.dtype)

    for path in ("position_source", "position"):
        position = engine.model.get_submodule(path)
        assert isinstance(position, Sinusoidal)
        position.embed = embed


def source_order_is_lost(seen: Seen) -> bool:
    """A source read backwards gives the same memory, backwards."""
    batch = seen.batch()
    source = batch.source[batch.source_lengths == batch.source.shape[1]]
    lengths = torch.full((len(source),), source.shape[1])
    with torch.no_grad():
        one, two = (seen.model.encode(these, lengths)[0] for these in (source, source.flip(1)))
    return torch.allclose(one, two.flip(1), atol=1e-4)


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


def backwards(engine: Engine) -> None:
    """Distances have the wrong sign: what came before is taken for what comes after, which all shares a bucket."""
    bias = engine.model.get_submodule("position.shared")
    assert isinstance(bias, RelativeBuckets)

    def adjust(score: Tensor, pairs: Pairs) -> Tensor:
        apart = (pairs.k.phase - pairs.q.phase).clamp(-bias.furthest, bias.furthest) + bias.furthest
        return score + bias.table[pairs.head, bias.bucket[apart]]

    bias.adjust = adjust


def padded_alike(path: str) -> Sabotage:
    """One convolution has the zeros around its text half before and half behind it, as for a picture."""

    def sabotage(engine: Engine) -> None:
        convolution = engine.model.get_submodule(path)
        assert isinstance(convolution, CausalConvolution)

        def forward(x: Tensor, phase: Tensor | None = None) -> Tensor:
            ahead, count = convolution.reach // 2, x.shape[1]
            around = F.pad(x, (0, 0, convolution.reach - ahead, ahead))
            begins = [convolution.reach - far for far in convolution.distances]
            return convolution.mix(torch.cat([around[:, begin : begin + count] for begin in begins], dim=-1))

        convolution.forward = forward

    return sabotage


FAULTS: list[Fault] = [
    Fault(
        "scores too large",
        "attention_collapse",
        r"blocks\.1\.attention",
        "Queries and keys of one layer are far too large: each row has all its weight on one key.",
        altered(sharpened(1, 40.0), gpt(qk_norm=False)),
        shows=lambda seen: max(seen.spreads("blocks.1")) < 0.1 < min(seen.spreads("blocks.0")),
    ),
    Fault(
        "embeddings scaled twice",
        "attention_collapse",
        r"(?:encoder|decoder)\.0\.attention",
        "Embeddings of unit variance times the root of the width, and no norm before the first layer.",
        mistranslated(unit_embeddings, tied=False, block=PostNormConfig()),
        shows=only_the_first_collapse,
        listed=False,
    ),
    Fault(
        "cooled too soon",
        "attention_collapse",
        r"\bdecoder\b",
        "The temperature of the attention falls with every update until it looks at one place only.",
        lambda folder: Case(translation(folder, LUONG), cooled("decoder", 0.8, 1e-3)),
        shows=looks_at_one_place,
        listed=False,
    ),
    Fault(
        "scale almost zero",
        "uniform_heads",
        r"blocks\.1\.attention",
        "The scores of one layer are scaled to nothing: its heads take the mean of all they see.",
        altered(flattened(1)),
        shows=lambda seen: min(seen.spreads("blocks.1")) > 0.999 > max(seen.spreads("blocks.0")),
    ),
    Fault(
        "memory pooled",
        "uniform_heads",
        r"decoder\.\d\.cross",
        "A mean over the sentence, left in from another task: the decoder finds the same key at every place.",
        mistranslated(changed_output("norm_source", pooled)),
        shows=lambda seen: min(crossing(seen)) > 0.999,
        listed=False,
    ),
    Fault(
        "no causal mask",
        "mask_fault",
        "",
        "Every layer sees the future.",
        altered(unmasked),
        shows=lambda seen: seen.ahead("blocks.0"),
    ),
    Fault(
        "one layer ignores the mask",
        "mask_fault",
        r"blocks\.1\.attention",
        "The second layer sees the future, the others do not.",
        altered(unmasked_layer(1)),
        shows=lambda seen: seen.ahead("blocks.1.attention") and not seen.ahead("blocks.0"),
    ),
    Fault(
        "padding not masked",
        "mask_fault",
        r"encoder",
        "The encoder looks at padding: what it makes of a sentence depends on the others in the batch.",
        mistranslated(padding_seen),
        shows=padding_matters,
        listed=False,
    ),
    Fault(
        "padded as a picture",
        "mask_fault",
        r"blocks\.1\b",
        "A convolution in the middle has half of its padding behind the text, and so sees the next token.",
        altered(padded_alike("blocks.1.convolution"), CONVOLUTION),
        shows=lambda seen: (
            seen.ahead("blocks.1.convolution") and not seen.ahead("blocks.0") and seen.record.validation[-1] < 0.2
        ),
        listed=False,
    ),
    Fault(
        "positions without effect",
        "position_fault",
        r"position",
        "The angles of rotary positions are all zero, so one layer of attention sees a bag of tokens.",
        altered(unturned, gpt(layers=1)),
        shows=order_is_lost,
        quick=True,
    ),
    Fault(
        "positions of rows",
        "position_fault",
        r"position|encoder\b",
        "Positions are counted along the wrong axis: the encoder sees a bag of tokens.",
        mistranslated(positions_of_rows),
        shows=source_order_is_lost,
        listed=False,
    ),
    Fault(
        "distances backwards",
        "position_fault",
        r"position|blocks\.0\.attention",
        "Distances have the wrong sign: whatever came before is in one bucket, and its order is lost.",
        altered(backwards, gpt(layers=1, position=T5Config()), steps=150),
        shows=order_is_lost,
        listed=False,
    ),
]
