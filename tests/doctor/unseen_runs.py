"""Ten more faults of training runs, of which whatever looks for faults has seen nothing: they measure it.

They are made as those of run_faults.py are, of other causes, in other parts, and most of them in other models: encoders
and decoders, a convolution, recurrent cells that carry their state, experts balanced by a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import unseen_parts as parts
from fault_batches import noise, words
from fault_models import parameter
from run_faults import TRAIN, Fault, altered, gpt, training
from run_kit import Case
from torch import Tensor

from regard.data import BpeConfig, PairsConfig
from regard.models import ConvolutionConfig, LuongConfig, RecurrentConfig, Seq2SeqConfig, TransformerConfig
from regard.nn import LayerNormConfig
from regard.nn.experts.moe import MoEConfig
from regard.tasks import TranslationConfig
from regard.train import ConstantScheduleConfig, Experiment, MuonConfig, NoamScheduleConfig

TOKENS = BpeConfig(vocabulary=300)
CONVOLUTION = ConvolutionConfig(context=32, layers=4, width=32, cycle=4, unit="relu2", zero_init=False)


def translation(folder: Path, model: Any = None) -> Experiment:
    """A small sound training of a model that translates."""
    data = PairsConfig(path=str(parts.written_pairs(folder)), tokenizer=TOKENS, test=0.0, near=100.0, batch=512)
    model = TransformerConfig(context=64, layers=2, heads=2, width=32, dropout=0.0) if model is None else model
    return Experiment(model, data, TranslationConfig(), TRAIN, seed=3)


def mistranslated(sabotage: parts.Sabotage, model: Any = None) -> Callable[[Path], Case]:
    """The small sound translation with a sabotage."""
    return lambda folder: Case(translation(folder, model), sabotage)


def zero_gain(folder: Path) -> Case:
    return Case(training(folder, model=CONVOLUTION), parameter("blocks.2.norm.gain", Tensor.zero_))


def strange_stretch(folder: Path) -> Case:
    """One row reads the text from its beginning to its end; around its 41st window every letter is drawn at random."""
    model = RecurrentConfig(cell="lstm", context=128, layers=1, width=64, carry=True)
    text, first, last = words(1, 9000), 40 * 128, 42 * 128
    torn = text[:first] + noise(1, last - first) + text[last:]
    sound = training(folder, text, model, batch=1, order="consecutive")
    return Case(training(folder, torn, model, batch=1, order="consecutive"), sound=sound)


def endless_warmup(folder: Path) -> Case:
    """The schedule of the Transformer's paper as it stands, warm-up and all, in a run of sixty steps."""
    paper = training(folder, train={"schedule": NoamScheduleConfig()}, tokenizer=TOKENS)
    return Case(paper, sound=training(folder, train={"schedule": ConstantScheduleConfig(warmup=5.0)}, tokenizer=TOKENS))


def balanced_wrongly(folder: Path) -> Case:
    mixture = MoEConfig(experts=8, active=2, balance=0.0, z=0.0)
    sound = training(folder, model=gpt(feedforward=replace(mixture, balance=0.05)))
    return Case(training(folder, model=gpt(feedforward=mixture)), parts.wrong_way(0.02), sound)


def same_parts(folder: Path) -> Case:
    experiment = training(folder, train={"optimizer": MuonConfig(), "accumulate": 4}, batch=2)
    return Case(experiment, parts.by_update(4))


UNSEEN: list[Fault] = [
    Fault(
        "memory rounded",
        "vanishing_gradients",
        r"encoder",
        "What the encoder gives is rounded, and nothing takes the gradient past the rounding: it never learns.",
        mistranslated(parts.changed_output("norm_source", parts.rounded)),
    ),
    Fault(
        "memory pooled",
        "uniform_heads",
        r"decoder\.\d\.cross",
        "A mean over the sentence, left in from another task: the decoder finds the same key at every place.",
        mistranslated(parts.changed_output("norm_source", parts.pooled)),
    ),
    Fault(
        "strange stretch of text",
        "loss_spike",
        r"\b(?:39|40|41)\b",
        "Text is read in order, and a stretch in its middle is no text.",
        strange_stretch,
    ),
    Fault(
        "root of nothing",
        "non_finite",
        r"\bembed\b|blocks\.0\.norm_attention",
        "A norm by hand meets a row of zeros in the 21st batch: its output is finite, its gradient is not.",
        altered(parts.zero_row(20), gpt(tied=False, norm=LayerNormConfig(bias=False))),
    ),
    Fault(
        "warm-up without end",
        "rate_too_low",
        r"train\.schedule",
        "Warm-up takes four thousand steps and the run sixty: the rate that was asked for is never reached.",
        endless_warmup,
    ),
    Fault(
        "gains counted from zero",
        "dead_units",
        r"blocks\.2\b",
        "A norm's gains are kept less one, as some libraries do, and taken as they are: zeros enter all its units.",
        zero_gain,
    ),
    Fault(
        "balanced the wrong way",
        "unused_expert",
        r"blocks\.0\.feedforward.*\b[01246]\b",
        "A bias that should even out the experts has the wrong sign: who has few tokens soon has none.",
        balanced_wrongly,
    ),
    Fault(
        "padding not masked",
        "mask_fault",
        r"encoder",
        "The encoder looks at padding: what it makes of a sentence depends on the others in the batch.",
        mistranslated(parts.padding_seen),
    ),
    Fault(
        "one micro-batch four times",
        "duplicated_data",
        "",
        "An update's four micro-batches are the same one.",
        same_parts,
    ),
    Fault(
        "mark of another library",
        "token_range",
        r"\b15\b",
        "Targets that do not count are -100 in one batch, and -1 elsewhere.",
        mistranslated(
            parts.marked_elsewhere(15), Seq2SeqConfig(context=64, width=32, dropout=0.0, attention=LuongConfig())
        ),
    ),
]
