"""The bottleneck of encoder-decoder models: one vector for a whole text against attention over all of it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from regard.data import BpeConfig, PairData, PairsConfig
from regard.data.translation.pairs import SentencePairs
from regard.generate.sampling import Sampling
from regard.generate.translation import Translator
from regard.measure import Comparison, compare, score
from regard.models import BahdanauConfig, FixedConfig, ModelConfig, Seq2SeqConfig, TransformerConfig
from regard.models.base import Seq2SeqModel
from regard.models.device import find_device
from regard.nn.positions.position import RotaryConfig
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.parallel.world import World
from regard.recipes import get
from regard.runs.disk import replace_files
from regard.studies.page import Study, lines, machine
from regard.train import Experiment
from regard.train.engine import Engine

SECONDS, TIMED = 120, 12  # of training each; batches by which updates are timed
LIMITS = (10, 20, 40, 60, 80)  # words of a source; the test sentences have at most the first
PASSES, HELD_OUT = 12, 40  # over the training sentences; joined validation pairs
CONTEXT = 320
FOLDER = Path("studies") / "data"
SENTENCES = PairsConfig()  # English and French; what is joined
RECURRENT = Seq2SeqConfig(context=CONTEXT, width=128, dropout=0.1)
MODELS: dict[str, ModelConfig] = {
    "one vector": replace(RECURRENT, attention=FixedConfig()),
    "Bahdanau": replace(RECURRENT, attention=BahdanauConfig()),
    "Transformer": TransformerConfig(context=CONTEXT, layers=2, heads=4, width=128, position=RotaryConfig()),
}
BASELINE, *OTHERS = MODELS
NOISE = 5.0  # BLEU; below it, models have not learned to translate
Pair = tuple[str, str]


class Found(NamedTuple):
    """What one model reached at one length."""

    bleu: float
    chrf: float
    gain: Comparison | None  # in BLEU over the model with one vector; None: it is that model


class TrainedBridge(NamedTuple):
    """A model after its training, and the seconds of its updates."""

    engine: Engine
    seconds: float


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What does one vector for a whole text cost? BLEU by length to 80 words, with and without attention.

    regard study bottleneck

    Home Assistant's English and French sentences, joined to texts of up to 80 words. A GRU encoder and decoder with one
    vector between them, the same with Bahdanau's attention and a Transformer train for two minutes each. The same test
    sentences are then translated in texts of 10 to 80 words. Eight minutes on 2 cores, or on a GPU.
    """
    seconds = SECONDS * scale
    parts = SENTENCES.build(64)
    config = _written(parts.train, parts.validation, seed)
    data = config.build(CONTEXT)
    base = get("translate-bahdanau")
    train = replace(base.train, precision="float32", compile=False)
    device = find_device(train.device)
    experiments = {}
    for name, model in MODELS.items():
        experiment = replace(base, model=model, data=config, train=train, seed=seed)
        experiments[name] = replace(experiment, model=experiment.model_for(data))
    trained = _trained(experiments, data, seconds, device, say)
    alone = [pair for pair in _pairs(parts.test) if len(pair[0].split()) <= LIMITS[0]]
    tests = {limit: joined(alone, (limit for _ in alone)) for limit in LIMITS}
    outputs: dict[str, dict[int, list[str]]] = {name: {} for name in trained}
    for name, (engine, _) in trained.items():
        say(f"{name}: translating {len(alone):,} sentences, {len(LIMITS)} times")
        assert isinstance(engine.model, Seq2SeqModel)
        translator = Translator(engine.model.eval(), data.tokenizer, data.specials, strategy=Sampling(temperature=0))
        for limit, pairs in tests.items():
            outputs[name][limit] = [one.text for one in translator.translate([source for source, _ in pairs])]
    found = measured(outputs, {limit: [target for _, target in pairs] for limit, pairs in tests.items()}, seed)
    effort = {
        name: {
            "parameters": sum(p.numel() for p in engine.model.parameters()),
            "steps": engine.progress.step,
            "seconds": spent,
        }
        for name, (engine, spent) in trained.items()
    }
    return Study(
        words(found, effort, len(alone)),
        _charts(found, {limit: len(pairs) for limit, pairs in tests.items()}),
        {
            "limits": LIMITS,
            "texts": [len(pairs) for pairs in tests.values()],
            "effort": effort,
            "found": {name: [one._asdict() for one in row] for name, row in found.items()},
        },
        f"{seconds:g} s of training each, greedy, {len(alone)} test sentences, seed {seed}, {machine(device)}",
    )


def joined(pairs: Sequence[Pair], limits: Iterable[int]) -> list[Pair]:
    """The pairs in order, joined to texts whose sources have at most so many words; a longer one stays alone."""
    texts: list[list[Pair]] = []
    room, limits = 0, iter(limits)
    for pair in pairs:
        count = len(pair[0].split())
        if not texts or count > room:
            texts.append([])
            room = next(limits)
        texts[-1].append(pair)
        room -= count
    return [(" ".join(map(ended, sources)), " ".join(map(ended, targets))) for sources, targets in map(_sides, texts)]


def ended(sentence: str) -> str:
    """The sentence with a full stop, if it has no mark at its end."""
    return sentence if sentence[-1] in ".!?:…" else f"{sentence}."


def measured(
    outputs: dict[str, dict[int, list[str]]], references: dict[int, list[str]], seed: int
) -> dict[str, list[Found]]:
    """BLEU and chrF by model and length, and the gain over one vector with its interval."""
    result: dict[str, list[Found]] = {}
    for name, texts in outputs.items():
        result[name] = []
        for limit, given in references.items():
            bleu, chrf = (one.value for one in score(texts[limit], given))
            gain = None if name == BASELINE else compare(outputs[BASELINE][limit], texts[limit], given, seed=seed)
            result[name].append(Found(bleu, chrf, gain))
    return result


def words(found: dict[str, list[Found]], effort: dict[str, dict[str, float]], sentences: int) -> list[str]:
    """BLEU of the shortest and the longest texts, what remains of it, and whether attention keeps more."""
    short, long = LIMITS[0], LIMITS[-1]
    kept = {name: row[-1].bleu / max(row[0].bleu, 1e-9) for name, row in found.items()}
    said = [
        f"The same {sentences:,} sentences in texts of up to {short} and of up to {long} words: "
        + "; ".join(
            f"{name} {row[0].bleu:.1f} and {row[-1].bleu:.1f} BLEU (chrF {row[0].chrf:.1f} and {row[-1].chrf:.1f})"
            for name, row in found.items()
        )
        + "."
    ]
    lowest = min(row[0].bleu for row in found.values())
    if lowest < NOISE:
        said.append(f"A BLEU of {lowest:.1f} is noise: with so little training there is nothing to compare.")
    for name in OTHERS if lowest >= NOISE else ():
        gains = [row.gain for row in found[name] if row.gain is not None]
        first, last = gains[0], gains[-1]
        more = kept[name] > kept[BASELINE] and last.low > 0
        verdict = (
            "the longer the text, the more one vector loses"
            if more
            else "this does not show that one vector loses more with length"
        )
        said.append(
            f"{name} keeps {kept[name]:.0%} of its BLEU and one vector {kept[BASELINE]:.0%}; its difference is "
            f"{first.difference:+.1f} at {short} words (95% interval {first.low:+.1f} to {first.high:+.1f}) and "
            f"{last.difference:+.1f} at {long} ({last.low:+.1f} to {last.high:+.1f}): {verdict}."
        )
    times = ", ".join(f"{name} {one['steps']:,.0f} in {one['seconds']:.0f} s" for name, one in effort.items())
    said.append(
        "The sentences of a text have nothing to do with one another, so a longer text is not harder in itself. The "
        f"models are small, trained briefly, for about the same time and not the same number of steps ({times}); one "
        "seed."
    )
    return said


def _charts(found: dict[str, list[Found]], counts: dict[int, int]) -> list[ChartSection]:
    places = list(map(float, LIMITS))
    rows = []
    for name, row in found.items():
        cells = [f"{one.bleu:.1f}" + (f" ({one.gain.difference:+.1f})" if one.gain else "") for one in row]
        rows.append((name, *cells))
    return [
        ChartSection(
            "BLEU by length",
            "The same sentences in texts of up to so many words.",
            lines({name: zip(places, (one.bleu for one in row), strict=True) for name, row in found.items()}),
            Axes("words in the source, at most", "BLEU", low=0, x_low=0),
            columns=("model", *(f"{limit} words, {counts[limit]} texts" for limit in LIMITS)),
            rows=rows,
        ),
        ChartSection(
            "chrF by length",
            "The same translations by their letters: a score that is less harsh with weak models.",
            lines({name: zip(places, (one.chrf for one in row), strict=True) for name, row in found.items()}),
            Axes("words in the source, at most", "chrF", low=0, x_low=0),
        ),
    ]


def _pairs(part: SentencePairs) -> list[Pair]:
    return list(zip(part.sources, part.targets, strict=True))


def _sides(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    sources, targets = zip(*pairs, strict=True)
    return list(sources), list(targets)


def _written(training: SentencePairs, validation: SentencePairs, seed: int) -> PairsConfig:
    """Files of joined pairs. The lengths are log-uniform: texts of every length have as many words in all."""
    draw, texts = Random(seed), []
    longest = LIMITS[-1]
    for _ in range(PASSES):
        pairs = _pairs(training)
        draw.shuffle(pairs)
        texts += joined(pairs, (round(longest ** draw.random()) for _ in pairs))
    held_out = joined(_pairs(validation), (longest for _ in validation.sources))[:HELD_OUT]
    files = {f"joined-{seed}.tsv": texts, f"joined-{seed}-validation.tsv": held_out}
    replace_files(FOLDER, {name: "".join(f"{a}\t{b}\n" for a, b in pairs) for name, pairs in files.items()})
    path, validation_path = (str(FOLDER / name) for name in files)
    tokenizer = BpeConfig(vocabulary=1024)
    return PairsConfig(path=path, validation_path=validation_path, test=0, near=100, tokenizer=tokenizer, batch=2048)


def _trained(
    models: dict[str, Experiment], data: PairData, seconds: float, device: torch.device, say: Callable[[str], None]
) -> dict[str, TrainedBridge]:
    """Models after so many seconds of training each.

    Seconds are turned into steps by the fastest of two updates on each of the same batches. In this and in training,
    models take turns: with other work on the machine, a clock alone would give some models less than others.
    """
    probes = [_engine(experiment, data, device) for experiment in models.values()]
    times = [[_timed(engine, number % TIMED) for engine in probes] for number in range(2 * TIMED)]
    per_step = [sum(map(min, zip(one[:TIMED], one[TIMED:], strict=True))) / TIMED for one in zip(*times, strict=True)]
    steps = {name: max(2, round(seconds / step)) for name, step in zip(models, per_step, strict=True)}
    engines = {
        name: _engine(replace(experiment, train=replace(experiment.train, steps=steps[name])), data, device)
        for name, experiment in models.items()
    }
    say("training together: " + ", ".join(f"{name} {count:,} steps" for name, count in steps.items()))
    spent = dict.fromkeys(models, 0.0)
    for turn in range(sum(steps.values())):
        name = min(engines, key=lambda one: (engines[one].progress.step + 1) / steps[one])
        spent[name] += _timed(engines[name], engines[name].progress.step)
        if turn % 200 == 199:
            say(
                ", ".join(
                    f"{one} {engine.progress.step:,} steps, {spent[one]:.0f} s" for one, engine in engines.items()
                )
            )
    return {name: TrainedBridge(engine, spent[name]) for name, engine in engines.items()}


def _engine(experiment: Experiment, data: PairData, device: torch.device) -> Engine:
    return Engine(experiment, data, World(device=device))


def _timed(engine: Engine, number: int) -> float:
    """The seconds of an update on the batch of this number."""
    engine.progress.position = number
    began = time.perf_counter()
    engine.update()
    return time.perf_counter() - began
