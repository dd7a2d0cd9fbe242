"""A third ten faults of training runs, each of another kind, to measure whatever looks for faults: all new to it.

They are made as those of run_faults.py, unseen_runs.py and fresh_runs.py are, and no cause is one of theirs.
"""

from __future__ import annotations

from pathlib import Path

import third_parts as parts
from run_faults import Fault, altered, gpt, training
from run_kit import Case
from unseen_runs import TOKENS, translation

from regard.attention import LinearConfig, WindowConfig
from regard.data import BytesConfig
from regard.models import ConvolutionConfig, LuongConfig, RecurrentConfig, Seq2SeqConfig
from regard.nn import NoNormConfig, ReLUConfig, T5Config
from regard.nn.experts.moe import MoEConfig
from regard.train import LinearScheduleConfig as FallingConfig
from regard.train import MuonConfig

DEEP = {"context": 32, "layers": 12, "width": 32, "cycle": 4, "zero_init": False}
LUONG = Seq2SeqConfig(context=64, width=32, dropout=0.0, attention=LuongConfig())


def drawn_alike(folder: Path) -> Case:
    bare = training(folder, model=ConvolutionConfig(**DEEP, norm=NoNormConfig()))
    return Case(bare, parts.drawn(0.5), training(folder, model=ConvolutionConfig(**DEEP)))


def early_end(folder: Path) -> Case:
    train = {"optimizer": MuonConfig(), "schedule": FallingConfig(warmup=2.0), "accumulate": 4}
    return Case(training(folder, train=train, batch=2, tokenizer=TOKENS), parts.counts_parts)


def by_hash(folder: Path) -> Case:
    mixture = gpt(feedforward=MoEConfig(experts=8, active=1, balance=0.05, z=0.0))
    experiment = training(folder, model=mixture, train={"optimizer": MuonConfig()}, tokenizer=BytesConfig())
    return Case(experiment, parts.upper_bits)


THIRD: list[Fault] = [
    Fault(
        "drawn without regard to width",
        "exploding_gradients",
        r"\bblocks\.[0-7]\b|\bembed\b",
        "Twelve convolutions without norms, their weights all drawn alike: each makes the gradient longer.",
        drawn_alike,
    ),
    Fault(
        "gate that is always one",
        "vanishing_gradients",
        r"blocks\.\d\.feedforward",
        "Gates are divided by their sum where each token has but one: the routers learn nothing.",
        altered(parts.one_gate, gpt(feedforward=MoEConfig(experts=2, active=1, balance=0.0, z=0.0))),
    ),
    Fault(
        "cooled too soon",
        "attention_collapse",
        r"\bdecoder\b",
        "The temperature of the attention falls with every update until it looks at one place only.",
        lambda folder: Case(translation(folder, LUONG), parts.cooled("decoder", 0.8, 1e-3)),
    ),
    Fault(
        "faulty device",
        "loss_spike",
        r"\b35\b|blocks\.1\b",
        "In one update a device miscomputes what a layer gives; no batch is at fault.",
        altered(parts.miscomputed("blocks.1.attention", 35), gpt(attention=WindowConfig(size=8))),
    ),
    Fault(
        "smoothing over hidden tokens",
        "non_finite",
        r"unembed|\bhead\b|next_token|\bloss\b|smoothing",
        "Tokens that must not be written have a logit of minus infinity, and smoothed labels give them a share.",
        lambda folder: Case(translation(folder), parts.hidden_logits),
    ),
    Fault(
        "schedule counts micro-batches",
        "rate_too_low",
        r"train\.(?:schedule|accumulate)",
        "The schedule goes on with every micro-batch, four times an update: soon the rate is zero.",
        early_end,
    ),
    Fault(
        "penalty too strong",
        "dead_units",
        r"blocks\.2\.feedforward",
        "A penalty that should make one layer sparse turns off all of its units within a few dozen updates.",
        altered(
            parts.sparse("blocks.2.feedforward.up", 3e-3),
            gpt(feedforward=ReLUConfig(), bias=True, attention=LinearConfig()),
        ),
    ),
    Fault(
        "hash of the upper bits",
        "overloaded_expert",
        r"blocks\.\d\.feedforward.*\b3\b",
        "Experts are chosen by the upper bits of each byte, which all small letters share.",
        by_hash,
    ),
    Fault(
        "distances backwards",
        "position_fault",
        r"position|blocks\.0\.attention",
        "Distances have the wrong sign: whatever came before is in one bucket, and its order is lost.",
        altered(parts.backwards, gpt(layers=1, position=T5Config()), steps=150),
    ),
    Fault(
        "workers with one seed",
        "duplicated_data",
        "",
        "Four workers make two rows each of every batch, and all make the same two.",
        altered(parts.same_seed(4), RecurrentConfig(cell="lstm", context=32, layers=2, width=64)),
    ),
]
