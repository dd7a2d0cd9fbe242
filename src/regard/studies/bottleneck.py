"""The bottleneck of encoder-decoder models: one vector for a whole sentence against attention over all of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from regard.config import to_toml
from regard.generate.translation import load_translation_model
from regard.measure import Comparison, LengthBucket, RetrievalBaseline, bleu_by_length, compare, score
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.recipes import get
from regard.runs import Run, environment
from regard.studies.page import Study, lines, machine
from regard.train import Experiment, train
from regard.train.live import LiveLine

SECONDS, LONG = 600, 12  # of training each; sources with more words than this are long
NAMES = {"one vector": "translate-fixed", "attention": "translate-bahdanau"}
EDGES = (4, 8, 12, 18, 26)
FOLDER = Path("studies") / "runs"


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What does one vector for a whole sentence cost? BLEU by source length, with and without attention.

    regard study bottleneck

    The recipes translate-fixed and translate-bahdanau, each trained for ten minutes, on a held-out test set.
    Twenty-five minutes on 2 cores; finished runs are reused.
    """
    seconds = max(5.0, SECONDS * scale)
    translations: dict[str, list[str]] = {}
    models = {name: load_translation_model(_trained(recipe, seconds, seed, say)) for name, recipe in NAMES.items()}
    data = models["attention"].data()
    for name, model in models.items():
        say(f"{name}: translating {len(data.test.sources):,} sentences")
        translations[name] = [one.text for one in model.translator().translate(data.test.sources)]
    sources, references = data.test.sources, data.test.targets
    nearest = RetrievalBaseline(data.train.sources, data.train.targets)
    translations["nearest neighbor"] = [nearest.translate(source) for source in sources]
    buckets = {name: bleu_by_length(sources, texts, references, EDGES) for name, texts in translations.items()}
    long = [i for i, source in enumerate(sources) if len(source.split()) > LONG]
    fixed, attended = translations["one vector"], translations["attention"]
    overall = compare(fixed, attended, references, seed=seed)
    on_long = compare(*([texts[i] for i in long] for texts in (fixed, attended, references)), seed=seed)
    return Study(
        words(overall, on_long, len(sources), len(long), buckets),
        [_chart(buckets)],
        {
            "scores": {name: [str(one) for one in score(texts, references)] for name, texts in translations.items()},
            "overall": overall._asdict(),
            "long": {"words above": LONG, "sentences": len(long), **on_long._asdict()},
            "by length": {name: [bucket._asdict() for bucket in part] for name, part in buckets.items()},
        },
        f"{seconds:g} s of training each, beam 5, {len(sources)} sentences, seed {seed}, {machine()}",
    )


def words(
    overall: Comparison, on_long: Comparison, sentences: int, long: int, buckets: dict[str, list[LengthBucket]]
) -> list[str]:
    """The comparison in sentences."""
    said = []
    for comparison, where in (
        (overall, f"On all {sentences:,} sentences"),
        (on_long, f"On the {long:,} of more than {LONG} words"),
    ):
        better = "attention is better" if comparison.difference > 0 else "one vector is better"
        sure = "" if comparison.p < 0.05 else "; the difference is not significant"
        said.append(
            f"{where} {better}: BLEU {comparison.second:.1f} with attention, {comparison.first:.1f} with one vector, a "
            f"difference of {comparison.difference:.1f} (95% interval {comparison.low:.1f} to {comparison.high:.1f}, "
            f"p = {comparison.p:.3f}, paired bootstrap){sure}."
        )
    gaps = [
        (few.words, many.bleu - few.bleu) for few, many in zip(buckets["one vector"], buckets["attention"], strict=True)
    ]
    said.append("The difference by source length in words: " + ", ".join(f"{n}: {gap:+.1f}" for n, gap in gaps) + ".")
    return said


def _chart(buckets: dict[str, list[LengthBucket]]) -> ChartSection:
    return ChartSection(
        "BLEU by source length",
        "Each point is the BLEU of the sentences with at least that many words, up to the next point. The nearest "
        "neighbor baseline returns the translation of the most similar training sentence (TF-IDF).",
        lines({name: [(float(one.least), one.bleu) for one in part] for name, part in buckets.items()}),
        Axes("words in the source", "BLEU", low=0, x_low=0),
    )


def _trained(recipe: str, seconds: float, seed: int, say: Callable[[str], None]) -> Run:
    """A finished run of an earlier study with the same settings, or a new one."""
    experiment = get(recipe)
    budget = replace(experiment.train, steps=None, seconds=seconds)
    experiment = replace(experiment, train=budget, seed=seed).checked()
    name = f"{recipe}-{seconds:g}s-seed{seed}"
    resume = (FOLDER / name).is_dir()
    run = Run.open(FOLDER / name) if resume else Run.create(FOLDER, name, to_toml(experiment), environment())
    checkpoint = run.latest()
    if checkpoint is not None and checkpoint.step == run.config["train"]["steps"]:
        say(f"{recipe}: {run.path} is already trained")
        return run
    say(f"{recipe}: resuming {run.path}" if resume else f"{recipe}: training for {seconds:g} s")
    train(run.load(Experiment), run, [LiveLine()], resume)
    return run
