"""Small models with sessions and traces, and the dense weights to compare with."""

from __future__ import annotations

from typing import Any

import torch

from regard.attention import (
    LongformerConfig,
    SoftmaxConfig,
    TopKConfig,
    WindowConfig,
)
from regard.data import BpeConfig, Bytes
from regard.data.translation.pairs import Specials
from regard.look import dense_weights
from regard.look.capture.observe import Attention
from regard.look.views.session import Session
from regard.look.views.trace import Trace
from regard.models import GPTConfig, Seq2SeqConfig, TransformerConfig
from regard.models.bridges import BahdanauConfig, LuongConfig
from regard.nn.blocks.reversible import ReversibleConfig
from regard.nn.positions.position import AlibiConfig, LearnedPositionConfig

TINY: dict[str, Any] = {"vocabulary": 256, "context": 48, "layers": 2, "heads": 4, "width": 16, "zero_init": False}
TEXT = "the light in the kitchen is on and so is it"
BPE = BpeConfig(vocabulary=300).build([TEXT * 4])
MARKS = Specials.after(BPE.size)
SIZES: dict[str, Any] = {"vocabulary": BPE.size + 3, "context": 32, "width": 16}


def gpt(**changes: Any) -> Session:
    torch.manual_seed(0)
    model = GPTConfig(**{**TINY, **changes}).build()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.mul_(8)  # as decided as a trained model
    return Session(model, Bytes())


def translator(kind: str) -> Session:
    torch.manual_seed(0)
    config = {
        "transformer": lambda: TransformerConfig(**SIZES, layers=2, decoder_layers=3, heads=2),
        "bahdanau": lambda: Seq2SeqConfig(**SIZES, attention=BahdanauConfig()),
        "luong": lambda: Seq2SeqConfig(**SIZES, attention=LuongConfig()),
    }[kind]()
    return Session(config.build(), BPE, MARKS)


LANGUAGE = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "window": {"attention": WindowConfig(5), "global_every": 2},
    "longformer": {"attention": LongformerConfig()},
    "cap": {"attention": SoftmaxConfig(cap=2.0)},
    "alibi": {"position": AlibiConfig()},
    "topk": {"attention": TopKConfig(3)},
    "repeated": {"repeat": 2},
    "reversible": {"block": ReversibleConfig()},
    "learned": {"position": LearnedPositionConfig(), "qk_norm": False},
}
PAIRS = ["transformer", "bahdanau", "luong"]


def traced(name: str) -> tuple[Session, Trace]:
    if name in LANGUAGE:
        session = gpt(**LANGUAGE[name])
        return session, session.trace(TEXT)
    session = translator(name)
    return session, session.trace("the light is on", "so is it in the kitchen")


def dense(attention: Any) -> torch.Tensor:
    """[H, Q, K], by the reference."""
    assert isinstance(attention, Attention)
    return dense_weights(attention)[0]
