"""How much text a recurrent network, a convolutional network and a Transformer need, at equal parameters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.config import override
from regard.data import TextConfig, TextData
from regard.data.origins.cache import cache_folder
from regard.data.sources import find_source
from regard.data.tokenizers import Characters
from regard.measure.interval import Mean, difference
from regard.models import ConvolutionConfig, GPTConfig, ModelConfig, RecurrentConfig
from regard.models.size import describe
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import BestRun, band, held_out, train_to_best
from regard.train import AdamWConfig, ConstantScheduleConfig, Experiment, TrainConfig

CONTEXT, STEPS, SEEDS = 64, 800, 3
DATA = TextConfig(batch=8)
SIZES, HELD_OUT = (2048, 16_384, 131_072), 16_384  # characters of training text, and to validate on
EVERY, PATIENCE = 50, 4  # steps between validations; how many without a lower loss end a training
RATES, TUNED = (2e-3, 6e-3), 16_384  # learning rates tried for each model, with this much text
TUNING = 1000  # added to the seed of the trainings that choose the rate
TRANSFORMER = "Transformer"
#: About 100,000 parameters each; the receptive field of the CNN is the context.
MODELS: dict[str, ModelConfig] = {
    "LSTM": RecurrentConfig(cell="lstm", layers=2, width=77),
    "CNN": ConvolutionConfig(layers=6, width=52, kernel=2, cycle=6, unit="relu2"),
    TRANSFORMER: GPTConfig(layers=2, width=64, heads=4),
}
Runs = dict[str, dict[int, list[BestRun]]]  # by model, size of text, seed


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How much text does a Transformer need, beside an LSTM and a CNN? The best loss by the size of the text.

    regard study data

    Character models of about 100,000 parameters, trained on 2,048 to 131,072 characters of Shakespeare with early
    stopping: the lowest loss on the same held-out characters, with three seeds, each with its own part of the plays.
    The learning rate of each model is the better of two. Four minutes on one core.
    """
    steps = max(EVERY, round(STEPS * scale))
    text = find_source(DATA.source).fetch(cache_folder()).read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        texts = SizedTexts(text, Path(folder))
        models = {name: sized(config, texts.tokenizer.size) for name, config in MODELS.items()}
        counts = {name: describe(config)["parameters"] for name, config in models.items()}
        rates, runs = {}, {}
        for name, config in models.items():
            rates[name] = best_rate(config, texts, steps, seed + TUNING)
            say(f"{name}, {counts[name]:,} parameters: learning rate {rates[name]:g}")
            runs[name] = {}
            for size in SIZES:
                seeds = range(seed, seed + SEEDS)
                runs[name][size] = [trained(config, rates[name], texts.part(size, n), steps, n) for n in seeds]
                say(f"{name}, {size:,} characters: loss {Mean.of(losses(runs[name][size]))}")
    return Study(
        words(runs),
        [_by_size(runs), _gaps(runs), _curves(runs)],
        {
            **{"sizes": SIZES, "parameters": counts, "rates": rates},
            "runs": {k: {n: [one._asdict() for one in found] for n, found in v.items()} for k, v in runs.items()},
        },
        f"context {CONTEXT}, batch {DATA.batch}, AdamW, stopped after {PATIENCE} validations, one each {EVERY} steps, "
        f"without a lower loss, or after {steps} steps; seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


class SizedTexts:
    """Parts of a text as files in a folder. The tokenizer and what is held out are the same for all."""

    def __init__(self, text: str, folder: Path):
        self.tokenizer, self.folder = Characters.of([text]), folder
        last = round(len(text) * (1 - DATA.validation))
        self.training = text[:last]
        (folder / "held_out.txt").write_text(text[last : last + HELD_OUT + 1], encoding="utf-8")

    def part(self, size: int, seed: int) -> TextData:
        """A part of ``size`` characters, by the seed from another place."""
        start = random.Random(seed).randrange(len(self.training) - size)
        path = self.folder / f"{size}-{seed}.txt"
        path.write_text(self.training[start : start + size], encoding="utf-8")
        config = replace(DATA, path=str(path), validation_path=str(self.folder / "held_out.txt"))
        return config.build(CONTEXT, self.folder, self.tokenizer)


def sized(config: ModelConfig, vocabulary: int) -> ModelConfig:
    """The model for this text."""
    return override(config, {"vocabulary": vocabulary, "context": CONTEXT})


def trained(config: ModelConfig, rate: float, data: TextData, steps: int, seed: int) -> BestRun:
    """The training up to the lowest loss on the held-out characters."""
    schedule = ConstantScheduleConfig(warmup=EVERY)
    train = TrainConfig(steps, optimizer=AdamWConfig(rate), schedule=schedule, device="cpu")
    batches = held_out(data, 64, HELD_OUT // CONTEXT)
    return train_to_best(Experiment(config, DATA, train=train, seed=seed), data, batches, EVERY, PATIENCE)


def best_rate(config: ModelConfig, texts: SizedTexts, steps: int, seed: int) -> float:
    """The rate with the lowest loss, in trainings with another seed, so on another part of the text."""
    data = texts.part(TUNED, seed)
    return min(RATES, key=lambda rate: trained(config, rate, data, steps, seed).loss)


def losses(runs: Sequence[BestRun]) -> list[float]:
    """The lowest loss of each training."""
    return [one.loss for one in runs]


def gaps(runs: Runs, other: str, size: int) -> list[float]:
    """By seed, the Transformer's loss less that of another model."""
    return [a - b for a, b in zip(losses(runs[TRANSFORMER][size]), losses(runs[other][size]), strict=True)]


def words(runs: Runs) -> list[str]:
    """The losses, and whether the Transformer's disadvantage shrinks as the text grows."""
    few, many = SIZES[0], SIZES[-1]
    sentences = [
        f"{name}: {', '.join(f'{Mean.of(losses(found))} with {size:,}' for size, found in by_size.items())} characters."
        for name, by_size in runs.items()
    ]
    for other in runs:
        if other == TRANSFORMER:
            continue
        change = difference(gaps(runs, other, many), gaps(runs, other, few))
        holds = "holds" if change.value < -change.error else "does not hold"
        sentences.append(
            f"The loss of the Transformer less that of the {other} is {_signed(Mean.of(gaps(runs, other, few)))} with "
            f"{few:,} characters and {_signed(Mean.of(gaps(runs, other, many)))} with {many:,}: it changes by "
            f"{_signed(change)}. The claim that a Transformer needs more text than the {other} {holds} here."
        )
    limited = [(size, sum(one.improving for name in runs for one in runs[name][size])) for size in SIZES]
    cut = ", ".join(f"{number} of {len(runs) * SEEDS} with {size:,}" for size, number in limited if number)
    return [
        *sentences,
        f"Trainings that ended before the loss stopped falling: {cut or 'none'}. Their losses are those of the number "
        "of steps, not of the text.",
        "± is half the 95% confidence interval over seeds, each with its own part of the plays; differences are of "
        "equal seeds. Small models without dropout, one text, and held-out characters that also chose when to stop.",
    ]


def _signed(mean: Mean) -> str:
    return f"{mean.value:+.3f} ± {mean.error:.3f}"


def _by_size(runs: Runs) -> ChartSection:
    return ChartSection(
        "The lowest validation loss by the size of the text",
        "Nats per character, mean of the seeds with its 95% interval. The horizontal axis is the binary logarithm of "
        "the number of characters: 11 is 2,048.",
        [
            band(name, {math.log2(n): losses(found) for n, found in by_size.items()}, color)
            for color, (name, by_size) in enumerate(runs.items())
        ],
        Axes("log2 of the characters of text", "loss, nats per character"),
        columns=("model", "characters", "loss", "best at step"),
        rows=[
            (name, f"{size:,}", str(Mean.of(losses(found))), ", ".join(str(one.step) for one in found))
            for name, by_size in runs.items()
            for size, found in by_size.items()
        ],
    )


def _gaps(runs: Runs) -> ChartSection:
    others = [name for name in runs if name != TRANSFORMER]
    return ChartSection(
        "The Transformer's loss less that of the others",
        "Pairs of equal seeds, with the 95% interval. Above 0 the other model is better. A line that falls is a "
        "Transformer that gains more from text.",
        [
            band(f"less the {other}", {math.log2(n): gaps(runs, other, n) for n in SIZES}, color)
            for color, other in enumerate(others)
        ],
        Axes("log2 of the characters of text", "difference, nats per character"),
    )


def _curves(runs: Runs) -> ChartSection:
    curves = {
        f"{name}, {size:,}": [(float(step), loss) for step, loss in runs[name][size][0].curve if math.isfinite(loss)]
        for name in runs
        for size in (SIZES[0], SIZES[-1])
    }
    return ChartSection(
        f"Validation loss during training, with {SIZES[0]:,} and {SIZES[-1]:,} characters",
        "The first seed. With little text the loss rises again: the model overfits, and the training is stopped.",
        lines(curves, marks=False),
        Axes("step", "loss, nats per character", x_low=0),
    )
