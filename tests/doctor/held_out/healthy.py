"""Healthy but unusual trainings: the doctor should find nothing in any of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_faults.kit import sentences

from held_out.parts import SGDConfig, experiment, gpt, text
from regard.data import BpeConfig, PairsConfig, TextConfig
from regard.data.tokenizers import BytesConfig
from regard.models import (
    BahdanauConfig,
    ConvolutionConfig,
    EncoderConfig,
    RecurrentConfig,
    Seq2SeqConfig,
    TransformerConfig,
)
from regard.nn.blocks.block import ParallelConfig, PostNormConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import GELUConfig, SwiGLUConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import AlibiConfig, LearnedPositionConfig, NoPositionConfig
from regard.tasks import MaskedTokensConfig, TranslationConfig
from regard.train import (
    AdamWConfig,
    ConstantScheduleConfig,
    Experiment,
    LinearScheduleConfig,
    MuonConfig,
    TrapezoidScheduleConfig,
)

Make = Callable[[Path], Experiment]
#: The first GPT: post-norm, learned positions, GELU, LayerNorm, biases, untied, small initial branches.
FIRST_GPT = gpt(
    block=PostNormConfig(),
    position=LearnedPositionConfig(),
    feedforward=GELUConfig(),
    norm=LayerNormConfig(),
    bias=True,
    tied=False,
    qk_norm=False,
    zero_init=False,
)
#: PaLM's block: attention and SwiGLU side by side, one key head.
PALM = gpt(block=ParallelConfig(), feedforward=SwiGLUConfig(), position=AlibiConfig(), kv_heads=1)
MUON: dict[str, Any] = {"optimizer": MuonConfig(), "schedule": TrapezoidScheduleConfig()}


def run(model: Any = None, content: Callable[[], str] | None = None, task: Any = None, **settings: Any) -> Make:
    """The small training with other settings; those of the data begin with ``data_``."""
    given = {key.removeprefix("data_"): value for key, value in settings.items() if key.startswith("data_")}
    train = {key: value for key, value in settings.items() if not key.startswith("data_")}

    def make(folder: Path) -> Experiment:
        path = text(folder, None if content is None else content())
        return experiment(folder, model, TextConfig(**{"path": path, "batch": 8, **given}), task, **train)

    return make


def pairs(model: Any, tokenizer: Any, smoothing: float, steps: int) -> Make:
    """A translation of 1,200 pairs: several epochs."""

    def make(folder: Path) -> Experiment:
        path = folder / "pairs.tsv"
        path.write_text(sentences(1, 1200), encoding="utf-8")
        data = PairsConfig(path=str(path), tokenizer=tokenizer, batch=512, near=100.0)
        return experiment(folder, model, data, TranslationConfig(smoothing=smoothing), steps=steps)

    return make


def random_letters() -> str:
    """Nothing can be learned beyond their frequency."""
    return "".join(random.Random(5).choices("abcdefghijklmnopqrstuvwxyz ", k=120_000))


def log_lines() -> str:
    """Most of every line of a server's log is the same, so the loss becomes very low."""
    draw, lines = random.Random(6), []
    for i in range(2500):
        code, ms, user = draw.choice([200, 200, 200, 404, 500]), draw.randint(1, 99999), draw.randrange(10**6)
        lines.append(f"{1700000000 + 37 * i + draw.randint(0, 30)} GET /user/{user:06d} {code} {ms}ms\n")
    return "".join(lines)


HEALTHY: dict[str, Make] = {
    "nothing unusual": run(),
    "tiny context": run(gpt(context=6), data_batch=32),
    "random letters": run(content=random_letters),
    "log lines": run(content=log_lines),
    "small rate, long run": run(optimizer=AdamWConfig(lr=3e-4), steps=400),
    "large rate": run(optimizer=AdamWConfig(lr=6e-3), schedule=LinearScheduleConfig(warmup=0.1)),
    "large rate of Muon": run(optimizer=MuonConfig(lr=0.05), schedule=TrapezoidScheduleConfig()),
    "heavy dropout": run(gpt(dropout=0.5)),
    "batch of one": run(gpt(context=64), data_batch=1, steps=250, optimizer=AdamWConfig(lr=1e-3)),
    "one layer": run(gpt(layers=1, heads=1)),
    "width of 8": run(gpt(width=8), optimizer=AdamWConfig(lr=1e-2)),
    "sixteen layers": run(gpt(layers=16, width=16), steps=100),
    "LSTM": run(RecurrentConfig(cell="lstm", context=32, layers=2, width=48)),
    "GRU that carries its state": run(
        RecurrentConfig(cell="gru", context=32, layers=1, width=48, carry=True), data_order="consecutive"
    ),
    "plain RNN": run(RecurrentConfig(cell="rnn", context=32, layers=1, width=48, residual=False)),
    "convolutions": run(ConvolutionConfig(context=32, layers=3, width=32)),
    "experts": run(gpt(feedforward=MoEConfig(experts=4)), steps=120),
    "masked encoder": run(
        EncoderConfig(context=32, layers=2, heads=2, width=32),
        None,
        MaskedTokensConfig(),
        data_batch=32,
        steps=220,
        **MUON,
    ),
    "translation": pairs(
        TransformerConfig(context=48, layers=1, heads=2, width=32), BpeConfig(vocabulary=400), 0.1, 80
    ),
    "Bahdanau": pairs(Seq2SeqConfig(context=64, width=32, attention=BahdanauConfig()), BytesConfig(), 0.0, 40),
    "no warm-up": run(schedule=ConstantScheduleConfig()),
    "many micro-batches": run(data_batch=1, accumulate=24, steps=50),
    "raw bytes": run(data_tokenizer=BytesConfig()),
    "subwords": run(data_tokenizer=BpeConfig(vocabulary=600)),
    "no positions": run(gpt(position=NoPositionConfig())),
    "first GPT": run(FIRST_GPT, optimizer=AdamWConfig(lr=1e-3), schedule=LinearScheduleConfig(warmup=0.2)),
    "PaLM's block": run(PALM),
    "momentum": run(optimizer=SGDConfig(lr=0.5), schedule=ConstantScheduleConfig(warmup=0.05)),
}
