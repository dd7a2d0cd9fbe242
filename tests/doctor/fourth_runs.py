"""A fourth ten faults of training runs, each of another kind, to measure whatever looks for faults: all new to it.

They are made as those of run_faults.py and the three lists after it are, and no cause is one of theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fourth_parts as parts
from run_faults import LENGTH, Fault, altered, gpt, training
from run_kit import Case
from unseen_runs import CONVOLUTION, TOKENS, translation

from regard.attention import LinearConfig, WindowConfig
from regard.models import RecurrentConfig, TransformerConfig
from regard.nn import PostNormConfig, ReGLUConfig
from regard.nn.experts.moe import MoEConfig
from regard.train import AdamWConfig, MuonConfig

GRU = RecurrentConfig(cell="gru", context=32, layers=2, width=32)
LSTM = RecurrentConfig(cell="lstm", context=32, layers=2, width=64)


def deep_post_norm(folder: Path) -> Case:
    deep: dict[str, Any] = {"context": 64, "layers": 8, "heads": 2, "width": 32, "dropout": 0.0}
    sound = translation(folder, TransformerConfig(**deep))
    return Case(translation(folder, TransformerConfig(**deep, block=PostNormConfig())), sound=sound)


def renamed(folder: Path) -> Case:
    model = gpt(tied=False, attention=WindowConfig(size=8))
    return Case(training(folder, model=model, tokenizer=TOKENS), parts.drawn_anew("unembed.weight", 45))


def all_prompt(folder: Path) -> Case:
    experiment = training(folder, model=gpt(attention=LinearConfig()), train={"accumulate": 2, "steps": 50}, batch=4)
    return Case(experiment, parts.all_prompt(51))


def smothered(folder: Path) -> Case:
    large = training(folder, model=LSTM, train={"optimizer": AdamWConfig(lr=5e-3, eps=1.0)})
    return Case(large, sound=training(folder, model=LSTM))


def unbalanced(folder: Path) -> Case:
    wrong, sound = (
        training(
            folder,
            model=gpt(feedforward=MoEConfig(experts=8, active=1, balance=balance, z=0.0)),
            train={"steps": 120},
        )
        for balance in (0.0, 0.3)
    )
    return Case(wrong, sound=sound)


def wrong_direction(folder: Path) -> Case:
    return Case(training(folder, model=GRU, train={"steps": 120}, tokenizer=TOKENS), parts.wrong_direction)


def mirrored(folder: Path) -> Case:
    train = {"steps": 200, "evaluate_every": 50}
    sound = training(folder, model=LSTM, train=train)
    return Case(training(folder, parts.mirrored(400, LENGTH), LSTM, train), sound=sound)


FOURTH: list[Fault] = [
    Fault(
        "gradients never cleared",
        "exploding_gradients",
        "",
        "Each update's gradient is added to those of all updates before, and nothing clips the sum.",
        altered(parts.never_cleared, GRU, optimizer=MuonConfig(), clip=None, steps=150),
    ),
    Fault(
        "deep with norms on the path",
        "vanishing_gradients",
        r"\b(?:encoder|decoder)\.[0-6]\b|\bembed",
        "Eight layers on either side whose norms stand on the residual path: each makes the gradient shorter.",
        deep_post_norm,
    ),
    Fault(
        "head not restored",
        "loss_spike",
        r"\b4[45]\b|unembed",
        "Taken up again, the run has all weights but those of its head, which the checkpoint has by another name.",
        renamed,
    ),
    Fault(
        "nothing but prompt",
        "non_finite",
        r"\b51\b|next_token|\bloss\b|target",
        "The loss is a mean over the targets that count, and in one micro-batch none does.",
        all_prompt,
    ),
    Fault(
        "epsilon of one",
        "rate_too_low",
        r"^(?!.*(?:schedule|blocks|embed))",
        "Adam divides by the gradient's size plus one, which is far larger: the rate in the log is not what acts.",
        smothered,
    ),
    Fault(
        "pruned too far",
        "dead_units",
        r"blocks\.0\.feedforward",
        "A layer should lose a tenth of its units and keeps a tenth: the share was taken for its opposite.",
        altered(parts.pruned("blocks.0.feedforward", 9), gpt(feedforward=ReGLUConfig())),
    ),
    Fault(
        "no loss that balances",
        "unused_expert",
        r"blocks\.0\.feedforward.*\b[0-7]\b",
        "One expert per token and nothing that spreads tokens: a few experts take all of them.",
        unbalanced,
    ),
    Fault(
        "padded as a picture",
        "mask_fault",
        r"blocks\.1\b",
        "A convolution in the middle has half of its padding behind the text, and so sees the next token.",
        altered(parts.padded_alike("blocks.1.convolution"), CONVOLUTION),
    ),
    Fault(
        "shifted the wrong way",
        "label_leak",
        "",
        "The target is the token before the newest one, which the model has just read.",
        wrong_direction,
    ),
    Fault(
        "one page by many addresses",
        "duplicated_data",
        "",
        "The text is one page a hundred times, each time under another heading, and so is what is held out of it.",
        mirrored,
    ),
]
