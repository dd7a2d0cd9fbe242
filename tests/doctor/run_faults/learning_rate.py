"""Learning rates, schedules and optimizers that do not suit the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.models import RecurrentConfig
from regard.train import AdamWConfig, ConstantScheduleConfig, MuonConfig, NoamScheduleConfig
from regard.train import LinearScheduleConfig as FallingConfig
from regard.train.engine import Engine
from run_faults.kit import TOKENS, Case, Fault, Sabotage, Seen, altered, misjudged, training
from run_faults.sabotage import LSTM


def overshooting(seen: Seen) -> bool:
    """The loss is worse than that of untrained weights, and a step replaces some of them altogether."""
    record = seen.record
    return max(record.losses[5:]) > record.losses[0] and max(max(moves.values()) for moves in record.moves[:5]) > 1


def blown_up(folder: Path) -> Case:
    train = {"optimizer": AdamWConfig(lr=5.0), "schedule": ConstantScheduleConfig(), "clip": None}
    return Case(training(folder, model=LSTM, train=train), sound=training(folder, model=LSTM))


def gradient_follows_the_rate(seen: Seen) -> bool:
    """The gradient is small before the first update, and large from then on."""
    norms = [record["grad_norm"] for record in seen.ended.run.metrics() if "grad_norm" in record]
    return norms[0] < 2 and min(norms[1:11]) > 20


def endless_warmup(folder: Path) -> Case:
    """The schedule of the Transformer's paper, with its warm-up of 4,000 steps, in a run of sixty steps."""
    paper = training(folder, train={"schedule": NoamScheduleConfig()}, tokenizer=TOKENS)
    return Case(paper, sound=training(folder, train={"schedule": ConstantScheduleConfig(warmup=5.0)}, tokenizer=TOKENS))


def never_warm(seen: Seen) -> bool:
    """The rate stays a fiftieth of what was asked for, and the loss where it was."""
    record = seen.record
    return max(record.rates) < 5e-3 / 50 and record.losses[-1] > record.losses[0] - 0.2


def upside_down(growth: float) -> Sabotage:
    """A second schedule, which is not logged, multiplies the rate after every update, and by more than one."""

    def sabotage(engine: Engine) -> None:
        plain = engine.optimizer.step
        engine.optimizer.step = lambda factor: plain(factor * growth**engine.progress.step)

    return sabotage


def outgrown(seen: Seen) -> bool:
    """The rate in the log stays, updates grow to a tenth of the weights, and the loss loses what it had gained."""
    record = seen.record
    grown = max(record.moves[-1].values()) > 0.1 and len(set(record.rates[5:])) == 1
    return grown and min(record.losses[-5:]) > min(record.losses) + 1


def counts_parts(engine: Engine) -> None:
    """The schedule goes one step on with every micro-batch, as if each were an update."""
    optimizer: Any = engine.optimizer
    config = engine.experiment.train
    step, learning_rates = optimizer.step, optimizer.learning_rates

    def factor() -> float:
        return config.schedule.factor(engine.progress.position, config.steps or 0)

    optimizer.step = lambda _: step(factor())
    optimizer.learning_rates = lambda _: learning_rates(factor())


def early_end(folder: Path) -> Case:
    train = {"optimizer": MuonConfig(), "schedule": FallingConfig(warmup=2.0), "accumulate": 4}
    return Case(training(folder, train=train, batch=2, tokenizer=TOKENS), counts_parts)


def ended_early(seen: Seen) -> bool:
    """After a quarter of the updates the rate is zero, and the loss stays where it was."""
    rates, losses = seen.record.rates, seen.record.losses
    return max(rates[16:]) == 0 < min(rates[:15]) and min(losses[16:]) > losses[16] - 0.2


def smothered(folder: Path) -> Case:
    large = training(folder, model=LSTM, train={"optimizer": AdamWConfig(lr=5e-3, eps=1.0)})
    return Case(large, sound=training(folder, model=LSTM))


def hardly_moving(seen: Seen) -> bool:
    """The rate is the one that was asked for, and no matrix of the cells moves by a thousandth in an update."""
    record = seen.record
    matrices = [name for name in record.moves[0] if ".weight_" in name]
    moved = max(moves[name] for moves in record.moves for name in matrices)
    return moved < 1e-3 and record.rates[-1] == 5e-3 and record.losses[-1] > record.losses[0] - 0.5


FAULTS: list[Fault] = [
    Fault(
        "rate a hundred times too high",
        "rate_too_high",
        "",
        "Each update is as large as the weights themselves.",
        misjudged(optimizer=AdamWConfig(lr=0.5)),
        shows=overshooting,
    ),
    Fault(
        "rate thirty times too high",
        "rate_too_high",
        r"train\.optimizer\.lr",
        "The first updates overshoot; then the weights have grown, and the loss falls again.",
        misjudged(optimizer=AdamWConfig(lr=0.15)),
        shows=lambda seen: max(max(moves.values()) for moves in seen.record.moves[:5]) > 0.5,
        listed=False,
    ),
    Fault(
        "rate a thousand times too high",
        "rate_too_high",
        r"train\.optimizer\.lr",
        "The first update replaces all weights; gradients explode in what is left, and nothing clips them.",
        blown_up,
        shows=gradient_follows_the_rate,
        listed=False,
    ),
    Fault(
        "decay upside down",
        "step_differs",
        r"train\.(?:schedule|optimizer)",
        "A rate that should shrink with every step grows with it instead; the log has the rate that was meant.",
        altered(upside_down(1.12), RecurrentConfig(cell="gru", context=32, layers=2, width=32)),
        shows=outgrown,
        listed=False,
    ),
    Fault(
        "rate a thousand times too low",
        "rate_too_low",
        "",
        "The weights hardly move.",
        misjudged(optimizer=AdamWConfig(lr=5e-6)),
        shows=lambda seen: seen.record.losses[-1] > seen.record.losses[0] - 0.1,
    ),
    Fault(
        "warm-up without end",
        "rate_too_low",
        r"train\.schedule",
        "Warm-up takes four thousand steps and the run sixty: the rate that was asked for is never reached.",
        endless_warmup,
        shows=never_warm,
        listed=False,
    ),
    Fault(
        "schedule counts micro-batches",
        "step_differs",
        r"train\.(?:schedule|accumulate)",
        "The schedule advances with every micro-batch, four times per update: soon the rate is zero.",
        early_end,
        shows=ended_early,
        listed=False,
    ),
    Fault(
        "epsilon of one",
        "setting_dominates",
        r"train\.optimizer\.eps",
        "Adam divides by the gradient's size plus one, which is far larger: the rate in the log is not what acts.",
        smothered,
        shows=hardly_moving,
        listed=False,
    ),
]
