"""A fault, the training that has it, and what was recorded of the training."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.config import to_toml
from regard.data import BpeConfig, PairsConfig, TextConfig
from regard.look import attentions, heads
from regard.models import GPTConfig, TransformerConfig
from regard.nn.experts.moe import MoEConfig
from regard.parallel.world import World
from regard.runs import Run
from regard.tasks import TranslationConfig
from regard.train import (
    AdamWConfig,
    ConstantScheduleConfig,
    Experiment,
    Observer,
    TrainConfig,
    TrainingStart,
    TrainingStep,
)
from regard.train.engine import Engine
from regard.train.loop import TrainingSession
from regard.train.prepare import prepare

Sabotage = Callable[[Engine], None]  # changes the engine before its first step: its model, its data, its optimizer
RARE = "~"  # occurs once, at the very beginning of the text
LENGTH = 40_000  # characters: no window comes twice in a short run
TOKENS = BpeConfig(vocabulary=300)
MODEL: dict[str, Any] = {"context": 32, "layers": 3, "heads": 2, "width": 32, "zero_init": False}
TRANSLATOR: dict[str, Any] = {"context": 64, "layers": 2, "heads": 2, "width": 32, "dropout": 0.0}
TRAIN = TrainConfig(
    steps=60,
    optimizer=AdamWConfig(lr=5e-3),
    schedule=ConstantScheduleConfig(warmup=5.0),
    log_every=1,
    evaluate_every=20,
    save_every=None,
    device="cpu",
)


class Case(NamedTuple):
    """A training with a fault, either in its experiment or in what is done to it before its first step."""

    experiment: Experiment
    sabotage: Sabotage | None = None
    sound: Experiment | None = None  # the same without the fault, if it is not the experiment without sabotage
    limit: int | None = None  # bytes that the process may use

    def cured(self) -> Case:
        """The same training without the fault."""
        return Case(self.sound or self.experiment)


class Fault(NamedTuple):
    """One fault, the kind of finding that it must cause, and where.

    ``kind`` must be among the findings of the run, with a place that matches ``where``: a module's name
    (blocks.1.attention), a layer and the number of an expert, the number of a batch (in micro-batches, from 0), or a
    key of the experiment (train.schedule.warmup). Other findings may come with it, if one fault has two effects.
    """

    name: str
    kind: str
    where: str  # a regular expression; "": the fault has no place
    about: str
    make: Callable[[Path], Case]
    shows: Callable[[Seen], bool]  # whether a finished training has the fault; it looks at that one thing only
    listed: bool = True  # before any check was written
    quick: bool = False  # its training takes a second or two


class Ended(NamedTuple):
    """A finished training."""

    engine: Engine
    run: Run
    error: Exception | None  # that ended it early


def trained(case: Case, folder: Path, observers: Sequence[Observer] = (), name: str | None = None) -> Ended:
    """Train a case into a run folder as `regard.train.train` does, but for the sabotage and the run's lock."""
    run = Run.create(folder, name, to_toml(case.experiment.checked()), {})
    engine = prepare(case.experiment, run, World(), time.perf_counter(), resume=False)
    if case.sabotage is not None:
        case.sabotage(engine)
    try:
        TrainingSession(engine, run, observers).run()
    except Exception as error:  # an error in an observer would end up here too
        return Ended(engine, run, error)
    return Ended(engine, run, None)


class Record(Observer):
    """Everything the checks need, step by step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validation: list[float] = []
        self.rates: list[float] = []
        self.gradients: list[dict[str, float]] = []  # of each parameter, its norm after clipping
        self.moves: list[dict[str, float]] = []  # of each parameter, how far it went over how long it is

    def started(self, start: TrainingStart) -> None:
        self.model = start.model
        self.before = self._weights()

    def stepped(self, step: TrainingStep) -> None:
        self.losses.append(step.loss)
        self.rates.append(step.lr)
        named = dict(self.model.named_parameters())
        self.gradients.append({name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in named.items()})
        after = self._weights()
        moved = {name: (new - self.before[name]).norm() / self.before[name].norm() for name, new in after.items()}
        self.moves.append({name: float(share) for name, share in moved.items()})
        self.before = after

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        self.validation.append(measures["validation_loss"])

    def gradient(self, within: str) -> float:
        """The norm of the gradient of all parameters whose name begins so: the median over the steps."""
        sums = [sum(n**2 for name, n in norms.items() if name.startswith(within)) for norms in self.gradients]
        return float(torch.tensor(sums).median().sqrt())

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


class Seen(NamedTuple):
    """A training that is over, and what was noted on the way."""

    case: Case
    record: Record
    ended: Ended

    @property
    def model(self) -> Any:
        return self.ended.engine.model

    def batch(self, number: int = 0) -> Any:
        """A training batch as the run got it."""
        return self.ended.engine.batch(number)

    def spreads(self, layer: str) -> list[float]:
        """Of each head of one layer, its entropy as a share of the greatest possible one."""
        found = attentions(self.model, lambda: self.model(self.batch().inputs))
        return [head.spread for head in heads(found) if head.name.startswith(layer)]

    def shares(self, layer: int) -> list[float]:
        """Of all pairs of a token and an expert, each expert's, in the last update."""
        return self.ended.engine.details()["expert_share"][layer]

    def outputs(self, module: str, tokens: torch.Tensor) -> torch.Tensor:
        """What one module gives for these tokens."""
        kept: list[torch.Tensor] = []
        hook = self.model.get_submodule(module).register_forward_hook(lambda _, given, out: kept.append(out))
        with torch.no_grad():
            self.model(tokens)
        hook.remove()
        return kept[0]

    def ahead(self, module: str) -> bool:
        """Whether one module's outputs depend on the last token at places before it."""
        tokens = self.batch().inputs
        other = tokens.clone()
        other[:, -1] = (other[:, -1] + 1) % self.model.config.vocabulary
        one, two = (self.outputs(module, these)[:, :-1] for these in (tokens, other))
        return not torch.equal(one, two)

    def spike(self, update: int) -> float:
        """How far one update's loss is above the highest of the five before it."""
        return self.record.losses[update] - max(self.record.losses[update - 5 : update])


def training(
    folder: Path, text: str | None = None, model: Any = None, train: dict[str, Any] | None = None, **data: Any
) -> Experiment:
    """A small sound training; arguments change parts of it."""
    path = written(folder, RARE + words(1, LENGTH) if text is None else text)
    config = {"validation": 0.05, "batch": 8, **data}
    model = gpt() if model is None else model
    return Experiment(model, TextConfig(path=str(path), **config), train=replace(TRAIN, **(train or {})), seed=3)


def gpt(**changes: Any) -> GPTConfig:
    """A small sound model."""
    return GPTConfig(**{**MODEL, **changes})


MIXTURE = gpt(feedforward=MoEConfig(experts=8, active=2, balance=0.05, z=0.0))


def altered(sabotage: Sabotage, model: Any = None, **train: Any) -> Callable[[Path], Case]:
    """The small sound training with a sabotage."""
    return lambda folder: Case(training(folder, model=model, train=train), sabotage)


def misjudged(**train: Any) -> Callable[[Path], Case]:
    """The small training with settings that do not suit it."""
    return lambda folder: Case(training(folder, train=train), sound=training(folder))


def translation(folder: Path, model: Any = None) -> Experiment:
    """A small sound training of a model that translates."""
    data = PairsConfig(path=str(written_pairs(folder)), tokenizer=TOKENS, test=0.0, near=100.0, batch=512)
    model = TransformerConfig(**TRANSLATOR) if model is None else model
    return Experiment(model, data, TranslationConfig(), TRAIN, seed=3)


def mistranslated(sabotage: Sabotage, model: Any = None, **changes: Any) -> Callable[[Path], Case]:
    """The small sound translation, perhaps by another model, with a sabotage."""
    model = TransformerConfig(**{**TRANSLATOR, **changes}) if model is None else model
    return lambda folder: Case(translation(folder, model), sabotage)


def words(seed: int, length: int) -> str:
    """Sentences of forty made-up words: quickly learned in part, and never the same twice."""
    draw = random.Random(4)
    lexicon = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(n % 3 + 1)) for n in range(40)]
    draw = random.Random(seed)
    sentences = (" ".join(draw.choices(lexicon, k=draw.randint(3, 9))) + ". " for _ in range(length // 10))
    return "".join(sentences)[:length]


def noise(seed: int, length: int) -> str:
    """Random letters: a model can only memorize them."""
    return "".join(random.Random(seed).choices("abcdefghijklmnop", k=length))


def written(folder: Path, text: str) -> Path:
    """The text as a file, named by what is in it."""
    path = folder / f"text-{zlib.crc32(text.encode()):08x}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def sentences(seed: int, count: int) -> str:
    """Pairs of sentences, word for word: short words have long translations, so that lengths differ in a batch."""
    draw = random.Random(4)
    sounds = ("bdfgkl", "aei"), ("mnprst", "ouy")
    lexicon = [
        ["".join(draw.choice(c) + draw.choice(v) for _ in range(n)) for (c, v), n in zip(sounds, lengths, strict=True)]
        for lengths in ((1, 3), (3, 1)) * 20
    ]
    draw, lines = random.Random(seed), []
    for _ in range(count):
        chosen = draw.choices(lexicon, k=draw.randint(1, 7))
        lines.append("\t".join(" ".join(words) for words in zip(*chosen, strict=True)) + "\n")
    return "".join(lines)


def written_pairs(folder: Path) -> Path:
    """The pairs as a file."""
    path = folder / "pairs.tsv"
    path.write_text(sentences(1, 3000), encoding="utf-8")
    return path


def dataset(engine: Engine) -> Any:
    """The data of an engine, with the attributes of its kind."""
    return engine.data


def changed(change: Callable[[int, Any, Engine], Any]) -> Sabotage:
    """Training batches pass through `change`, which also gets their number."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch

        def batch(step: int, **named: Any) -> Any:
            number = step * named["world"] + named["rank"]  # of the micro-batch, in a run of one process
            return change(number, plain(step, **named), engine)

        engine.data.batch = batch

    return sabotage
