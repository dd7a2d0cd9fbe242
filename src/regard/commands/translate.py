"""`regard translate`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.commands.common import RunOptions, check_parent, is_run, open_run
from regard.commands.lines import Lines, gathered, notices, progress
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.generate.translation import TranslatedLine, TranslationModel, Translator
    from regard.runs import Run

PICTURES = (".svg", ".png", ".html")
EXAMPLES = 5  # held-out sentences that are shown when nothing is given


@dataclass(frozen=True)
class TranslateOptions(RunOptions):
    """Options of `regard translate`."""

    text: tuple[str, ...] = argument((), "the texts to translate; - is a text on each line of standard input")
    file: str | None = option(None, "a file with a text on each line; - reads standard input", metavar="FILE")
    out: Path | None = option(None, "write the translations to this file, line by line, instead of standard output")
    beam: int = option(5, "number of beams; 1 is greedy decoding")
    length_penalty: float = option(
        1.0, "the log-probability is divided by length to this power; 0 prefers short translations"
    )
    nbest: int = option(1, "translations per text, best first: line, rank, score and translation, separated by tabs")
    sample: bool = option(False, "sample translations instead of beam search")
    temperature: float = option(1.0, "with --sample: the sampling temperature")
    seed: int = option(1, "with --sample: the random seed")
    max_length: int | None = option(None, "maximum number of tokens per translation; default: the model's context")
    reference: Path | None = option(None, "a file with the reference translation of each line, to print BLEU and chrF")
    test: bool = option(False, "translate the run's test part, and print BLEU, chrF and those of a retrieval baseline")
    show: bool = option(False, "draw the alignment of words; followed by FILE.svg, .png or .html, as a picture")
    step: int | None = option(None, "step of the checkpoint; default: the newest")
    batch: int = option(64, "texts per batch; does not change the translations")
    device: str = option("auto", "where to run: auto, cpu, cuda, mps")

    def check(self) -> None:
        """Refuse impossible options before torch is imported."""
        counts = (("beam", self.beam), ("nbest", self.nbest), ("batch", self.batch), ("max-length", self.max_length))
        for name, value in counts:
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}")
        if self.nbest > self.beam and not self.sample:
            raise UserError(f"--nbest {self.nbest} needs as many beams; give --beam {self.nbest}")
        check_parent(self.out)


def translate(options: TranslateOptions) -> int:
    """Translate with a trained model.

    Without any text, some sentences of the run's validation part are translated and shown with their references.
    """
    options.check()
    test = options.test
    name, texts, picture = sorted_out(options.run, options.text, options.runs, options.show)
    if test and (texts or options.file or options.reference):
        raise UserError("--test brings its own texts and references; leave out TEXT, --file and --reference")
    found = open_run(name, options.runs)  # a mistyped name is reported before torch is imported
    from regard.generate import BeamSearch, Sampling
    from regard.generate.load import find_device
    from regard.generate.translation import load_translation_model

    try:
        strategy = Sampling(options.temperature) if options.sample else BeamSearch(options.beam, options.length_penalty)
    except ValueError as problem:
        raise UserError(f"--{problem}") from problem
    if picture is not None:
        from regard.look.pictures.align_picture import check

        check(picture)
    lines = Lines([], [], "") if test else gathered(texts, options.file, options.reference)
    trained = load_translation_model(found, find_device(options.device), options.step)
    settings = {"strategy": strategy, "nbest": options.nbest, "max_length": options.max_length, "seed": options.seed}
    translator = trained.translator(**settings, batch=options.batch)
    if not lines.texts:
        lines = held_out(trained, found, test)
    if name is None:
        print(f"translated by {found.path}, step {trained.step:,}", file=sys.stderr, flush=True)
    made, seconds = carried_out(translator, lines, options.out, quiet=options.json or test or lines.examples)
    measured = measures(trained, lines, made, test) if lines.references and not lines.examples else {}
    for notice in notices(made, options.max_length or translator.context, translator.context):
        print(notice, file=sys.stderr)
    if options.json:
        about = {"run": str(found.path), "step": trained.step, "seconds": seconds, **measured}
        described = [as_record(number, one, lines) for number, one in enumerate(made)]
        print(json.dumps({**about, "translations": described}, ensure_ascii=False))
    else:
        for one, right in zip(made, lines.references, strict=True) if lines.examples else ():
            print(f"source       {one.line.text}\nreference    {right}\ntranslation  {one.text}\n")
        print_scores(measured)
    if options.show:
        draw(trained, made, picture, options.json)
    return 0


def sorted_out(
    run: str | None, text: tuple[str, ...], runs: Path, show: bool
) -> tuple[str | None, list[str], Path | None]:
    """The run, the texts and the picture's file among what was given without a name, whatever their order."""
    given = [*([] if run is None else [run]), *text]
    picture = next((one for one in given if show and one.lower().endswith(PICTURES) and not is_run(one, runs)), None)
    if picture is not None:
        given.remove(picture)
    path = None if picture is None else Path(picture)
    for place in (0, -1):
        if given and is_run(given[place], runs):
            return given.pop(place), given, path
    # One word alone is more likely a mistyped name than a text, if runs have names like it.
    if run is not None and given and run == given[0] and " " not in run and run != "-" and _name_like(run, runs):
        return given.pop(0), given, path
    return None, given, path


def _name_like(word: str, runs: Path) -> bool:
    import difflib

    names = [path.parent.name for path in runs.glob("[!.]*/config.toml")] if runs.is_dir() else []
    return "/" in word or not names or bool(difflib.get_close_matches(word, names, n=1))


def held_out(trained: TranslationModel, run: Run, test: bool) -> Lines:
    """The test part of the run, or a few of the sentences that it kept for evaluation."""
    data = trained.data()
    if test:
        if not data.test.sources:
            raise UserError(f"the run {run.path} has no test part; train with --data.test 0.05 to keep one back")
        return Lines(data.test.sources, data.test.targets, "the test part")
    part = data.validation if data.validation.sources else data.test if data.test.sources else data.train
    count = len(part.sources)
    chosen = sorted({count * i // EXAMPLES for i in range(EXAMPLES)})
    return Lines([part.sources[i] for i in chosen], [part.targets[i] for i in chosen], "held out", examples=True)


def carried_out(
    translator: Translator, lines: Lines, out: Path | None, quiet: bool
) -> tuple[list[TranslatedLine], float]:
    """Translate, and write each line where it belongs as it comes."""
    began, made = time.perf_counter(), []
    try:
        stream = None if out is None else out.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from error
    try:
        for one in progress(translator.translate(lines.texts), len(lines.texts)):
            made.append(one)
            if stream is not None or not quiet:
                print(shown(one, len(made), translator.nbest), file=stream, flush=stream is None)
    finally:
        if stream is not None:
            stream.close()
    return made, time.perf_counter() - began


def shown(one: TranslatedLine, number: int, nbest: int) -> str:
    """The lines of output for one line of input; one and only one unless several translations were asked for."""
    if nbest == 1:
        return one.text
    if not one.translations:
        return f"{number}\t1\t0\t"
    ranks = enumerate(one.translations, 1)
    return "\n".join(f"{number}\t{rank}\t{text.hypothesis.score:.4f}\t{text.text}" for rank, text in ranks)


def as_record(number: int, one: TranslatedLine, lines: Lines) -> dict[str, Any]:
    """A translation for a program."""
    texts = [{"text": text, **found._asdict(), "tokens": len(found.tokens)} for text, found in one.translations]
    made = {"line": number + 1, "source": one.line.text, "text": one.text, "texts": texts, "cut": one.line.truncated}
    right = {"reference": lines.references[number]} if lines.references else {}
    return {**made, "unknown": list(one.line.unknown), **right}


def measures(trained: TranslationModel, lines: Lines, made: Sequence[TranslatedLine], test: bool) -> dict[str, Any]:
    """BLEU and chrF, for programs; for the test part also the baseline's and those of short and long sources."""
    from regard.measure import Nearest, bleu_by_length, compare, score

    outputs, references = [one.text for one in made], lines.references
    result: dict[str, Any] = {"scores": [one._asdict() for one in score(outputs, references)]}
    if not test:
        return result
    train = trained.data().train
    index = Nearest(train.sources, train.targets)
    looked_up = [index.translate(text) for text in lines.texts]
    buckets = bleu_by_length(lines.texts, outputs, references)
    result["baseline"] = [one._asdict() for one in score(looked_up, references)]
    result["difference"] = compare(looked_up, outputs, references)._asdict()
    result["by_length"] = [{"words": one.words, "size": one.size, "bleu": one.bleu} for one in buckets]
    return result


def print_scores(measured: dict[str, Any]) -> None:
    """The figures for people."""
    for one in measured.get("scores", []):
        print(f"{one['name']:6}{one['value']:6.2f}   {one['signature']}")
    if "baseline" not in measured:
        return
    figures = ", ".join(f"{one['name']} {one['value']:.2f}" for one in measured["baseline"])
    difference = measured["difference"]
    gained = difference["second"] - difference["first"]
    print(f"the nearest training sentence's translation (TF-IDF): {figures}")
    print(
        f"the model is {gained:+.2f} BLEU from it (95% of resamples {difference['low']:+.2f} to "
        f"{difference['high']:+.2f}, p = {difference['p']:.4f})"
    )
    print("BLEU by words of the source:")
    for one in measured["by_length"]:
        print(f"  {one['words']:>6}  {one['bleu']:6.2f}   {one['size']:,} sentence{'s' * (one['size'] != 1)}")


def draw(trained: TranslationModel, made: Sequence[TranslatedLine], picture: Path | None, as_json: bool) -> None:
    """Which words each word came from: in the terminal, or as a picture."""
    import os
    import shutil

    from regard.look.pictures.align import align
    from regard.look.pictures.align import draw as drawn

    found = [
        align(
            trained.model, trained.tokenizer, trained.specials, one.line.tokens, one.translations[0].hypothesis.tokens
        )
        for one in made
        if one.translations
    ]
    if picture is not None:
        from regard.look.pictures.align_picture import save

        save(found, picture)
        print(f"drawn in {picture}", file=sys.stderr)
        return
    stream = sys.stderr if as_json else sys.stdout
    colour = stream.isatty() and not os.environ.get("NO_COLOR")
    for alignment in found:
        print(f"\n{drawn(alignment, shutil.get_terminal_size().columns, colour)}", file=stream)
