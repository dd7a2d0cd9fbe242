"""A GPT whose rows are shared by several ranks is the GPT of one process; what cannot be shared is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from ring_kit import Threads
from torch import Tensor

from regard.attention import AnySlots, Packed, Padded, Range
from regard.attention.mechanisms.linear import LinearConfig
from regard.attention.mechanisms.lsh import LSHConfig
from regard.attention.mechanisms.masked import MaskedAttentionConfig, TopKConfig, WindowConfig
from regard.attention.mechanisms.performer import PerformerConfig
from regard.attention.mechanisms.talking import TalkingConfig
from regard.data.base import IGNORE_INDEX, PairBatch, TextBatch
from regard.errors import UserError
from regard.models import EncoderConfig, GPTConfig, ModelConfig, RecurrentConfig
from regard.models.gpt import GPT
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.latent import LatentConfig
from regard.nn.mixers import MambaConfig
from regard.nn.positions.position import (
    AlibiConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5Config,
)
from regard.parallel.context import connect, obstacles, refuse
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.tasks import LanguageTask, MaskedTokens
from regard.train.context import check_task, cut

LENGTH, ROWS, VOCABULARY = 32, 2, 11
SMALL = GPTConfig(
    vocabulary=VOCABULARY, context=LENGTH, layers=2, heads=4, kv_heads=2, width=32, zero_init=False, dropout=0.0
)
MODELS = {
    "rotary": replace(SMALL, position=RotaryConfig()),
    "learned": replace(SMALL, position=LearnedPositionConfig()),
    "sinusoidal": replace(SMALL, position=SinusoidalConfig()),
    "alibi": replace(SMALL, position=AlibiConfig()),
    "relative": replace(SMALL, position=RelativeConfig(distance=6)),
    "t5": replace(SMALL, position=T5Config()),
    "none": replace(SMALL, position=NoPositionConfig()),
    "windows and global layers": replace(SMALL, attention=WindowConfig(7, sinks=2), global_every=2),
    "a mask of the tokens": replace(SMALL, attention=MaskedAttentionConfig(mask="spans(3, 5) | window(4)")),
    "latent": replace(SMALL, kv_heads=None, projection=LatentConfig()),
    "repeated and recomputed": replace(SMALL, repeat=2),
    "experts": replace(SMALL, feedforward=MoEConfig(experts=3, balance=0.0, z=0.0)),
}
SLOTS: dict[str, AnySlots | None] = {
    "range": None,
    "padded": Padded(torch.tensor([32, 19]), LENGTH),
    "packed": Packed.of([[5, 20, 7], [13, 12]], LENGTH),
}
CASES = [("rotary", slots) for slots in SLOTS] + [(name, "packed") for name in MODELS if name != "rotary"]


def outcome(model: GPT, batch: TextBatch) -> tuple[float, dict[str, Tensor]]:
    """The summed loss and its gradients."""
    loss = LanguageTask().terms(model, batch)["next_token"].total
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def text(slots: AnySlots | None) -> TextBatch:
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    if isinstance(slots, Padded):
        targets[~slots.filled()] = IGNORE_INDEX
    return TextBatch(inputs, targets, slots)


def world(rank: int, size: int) -> World:
    return World(rank, size, layout=Layout(context=size).of(size))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("name", "slots"), CASES)
def test_a_gpt_with_shared_rows_equals_one_process(name: str, slots: str, size: int) -> None:
    torch.manual_seed(0)
    model = MODELS[name].build().double()
    assert isinstance(model, GPT)
    assert not list(obstacles(model))
    model.checkpointing = name == "repeated and recomputed"
    batch = text(SLOTS[slots])
    copies = [deepcopy(model) for _ in range(size)]
    loss, gradients = outcome(model, batch)
    for copy, transport in zip(copies, Threads.of(size), strict=True):
        connect(copy, transport)
    with ThreadPoolExecutor(size) as pool:
        parts = [cut(batch, world(rank, size)) for rank in range(size)]
        started = [pool.submit(outcome, *each) for each in zip(copies, parts, strict=True)]
        losses, found = zip(*(future.result() for future in started), strict=True)
    assert sum(losses) == pytest.approx(loss, rel=1e-12)
    for parameter, wanted in gradients.items():
        got = torch.stack([each[parameter] for each in found]).sum(0)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10 * max(1.0, float(wanted.abs().max())), msg=parameter)


REFUSED: dict[str, tuple[ModelConfig, str]] = {
    "n-grams": (replace(SMALL, ngrams=2), "--model.ngrams 1"),
    "dropout": (replace(SMALL, dropout=0.1), "--model.dropout 0"),
    "attention dropout": (replace(SMALL, attention_dropout=0.1), "--model.attention_dropout 0"),
    "reversible": (replace(SMALL, block=ReversibleConfig()), "--model.block pre-norm"),
    "linear": (replace(SMALL, attention=LinearConfig(), position=NoPositionConfig()), "LinearAttention .* softmax"),
    "performer": (replace(SMALL, attention=PerformerConfig()), "Performer .* softmax"),
    "lsh": (replace(SMALL, attention=LSHConfig(), kv_heads=None), "LSH .* softmax"),
    "talking": (replace(SMALL, attention=TalkingConfig(), kv_heads=None), "Talking .* softmax"),
    "top k": (replace(SMALL, attention=TopKConfig(4)), "top-k .* softmax"),
    "mamba": (replace(SMALL, attention=MambaConfig()), "SelectiveScan .* softmax"),
    "experts": (replace(SMALL, feedforward=MoEConfig()), "--model.feedforward.balance 0"),
    "capacity": (replace(SMALL, feedforward=MoEConfig(balance=0, z=0, capacity=1.2)), "capacity none"),
    "a backend by name": (replace(SMALL, backend="banded"), "--model.backend auto"),
    "recurrent": (RecurrentConfig(vocabulary=VOCABULARY), "RecurrentModel .* --model gpt"),
    "encoder": (EncoderConfig(vocabulary=VOCABULARY), "TransformerEncoder .* --model gpt"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_shared_is_refused_with_the_fix(name: str) -> None:
    config, fix = REFUSED[name]
    with pytest.raises(UserError, match=f"{fix}.*; or set --layout.context 1"):
        refuse(list(obstacles(config.build())))


def test_rows_that_cannot_be_cut_are_refused_with_the_fix() -> None:
    batch = text(None)
    short = batch._replace(inputs=batch.inputs[:, :30], targets=batch.targets[:, :30])
    with pytest.raises(UserError, match=re.escape("rows of 30 tokens evenly: set --model.context 32")):
        cut(short, world(0, 4))
    rows = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(UserError, match="A PairBatch cannot be cut"):
        cut(PairBatch(rows, rows[:, 0], rows, rows), world(0, 2))
    with pytest.raises(UserError, match="MaskedTokens needs whole rows: use --task language"):
        check_task(MaskedTokens(), world(0, 2))
    check_task(MaskedTokens(), World())
    assert cut(batch, World()) is batch


def test_each_token_is_on_one_rank_with_its_place_in_the_row() -> None:
    batch = text(SLOTS["packed"])._replace(words=torch.arange(LENGTH).expand(ROWS, -1))
    whole = SLOTS["packed"]
    assert isinstance(whole, Packed)
    parts = [cut(batch, world(rank, 4)) for rank in range(4)]
    assert all(part.words is not None and part.slots is not None for part in parts)
    order = torch.cat([part.slots.order for part in parts], dim=1)[0].argsort()  # type: ignore[union-attr]
    for name in ("inputs", "targets", "words"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1)[:, order], getattr(batch, name))
    for name in ("segment", "phase"):
        joined = torch.cat([getattr(part.slots, name) for part in parts], dim=1)[:, order]
        assert torch.equal(joined, getattr(whole, name))
    plain = cut(text(None), world(1, 4)).slots
    assert plain is not None
    assert plain.phases(torch.device("cpu")).tolist() == [[4, 5, 6, 7, 24, 25, 26, 27]]
    assert Range(LENGTH).rows == plain.rows
