"""Faults of masks and positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Full, Pairs, RelativeBuckets
from regard.attention.backends.choose import run
from regard.nn.convolution import CausalConvolution
from regard.nn.positions.position import Sinusoidal, T5Config, sinusoids
from regard.train.engine import Engine
from run_faults.kit import Fault, Sabotage, Seen, altered, dataset, gpt, mistranslated
from run_faults.sabotage import CONVOLUTION, softmax


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


def padding_seen(engine: Engine) -> None:
    """The encoder does not get the lengths of its sentences, and attends to padding."""
    model: Any = engine.model
    encode = model.encode
    model.encode = lambda source, lengths: encode(source, torch.full_like(lengths, source.shape[1]))


def padding_matters(seen: Seen) -> bool:
    """A sentence's memory is another one when there is more padding behind it."""
    batch, pad = seen.batch(), dataset(seen.ended.engine).specials.pad
    wider = F.pad(batch.source, (0, 4), value=pad)
    real = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    with torch.no_grad():
        one, two = (seen.model.encode(source, batch.source_lengths)[0] for source in (batch.source, wider))
    return not torch.allclose(one[real], two[:, : one.shape[1]][real], atol=1e-3)


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
