"""`regard translate`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from regard.commands.common import CheckpointOptions, check_parent, is_run, naming_options, open_run
from regard.commands.lines import Lines, gathered, notices
from regard.config import argument, nearest, option
from regard.errors import UserError
from regard.runs import Run
from regard.runs.disk import JsonObject
from regard.runs.waiting import waiting
from regard.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from regard.generate.translation import TranslatedLine, TranslationModel, Translator

PICTURES = (".svg", ".png", ".html")
EXAMPLES = 5  # held-out sentences that are shown without any text


@dataclass(frozen=True)
class TranslateOptions(CheckpointOptions):
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
    batch: int = option(64, "texts per batch; does not change the translations")

    def check(self) -> None:
        """Refuse impossible options before torch is imported."""
        self.check_at_least_one("beam", "nbest", "batch", "max_length")
        if self.nbest > self.beam and not self.sample:
            raise UserError(f"--nbest {self.nbest} needs as many beams; give --beam {self.nbest}")
        check_parent(self.out)


def translate(options: TranslateOptions) -> int:
    """Translate with a trained model.

    Without any text, some sentences of the run's validation part are translated and shown with their references.
    """
    options.check()
    name, texts, picture = split_positional(options)
    if options.test and (texts or options.file or options.reference):
        raise UserError("--test brings its own texts and references; leave out TEXT, --file and --reference")
    run = run_for(texts, name, options.runs)  # a mistyped name is reported before torch is imported
    from regard.generate import BeamSearch, Sampling
    from regard.generate.translation import load_translation_model
    from regard.models.device import find_device

    with naming_options():
        strategy = Sampling(options.temperature) if options.sample else BeamSearch(options.beam, options.length_penalty)
    if picture is not None:
        from regard.look.pictures.align import check

        check(picture)
    lines = Lines([], []) if options.test else gathered(texts, options.file, options.reference)
    model = load_translation_model(run, find_device(options.device), options.step)
    limits = {"nbest": options.nbest, "max_length": options.max_length, "seed": options.seed, "batch": options.batch}
    translator = model.translator(strategy=strategy, **limits)
    if not lines.texts:
        lines = sentences_of_run(model, run, options.test)
    if name is None:
        print(printable(f"translated by {run.path}, step {model.step:,}"), file=sys.stderr, flush=True)
    quiet = options.json or options.test or lines.examples
    translated, seconds = translate_lines(translator, lines, options.out, quiet)
    scored = bool(lines.references) and not lines.examples
    with waiting("measuring"):
        metrics = measure_translations(model, lines, translated, options.test) if scored else {}
    for line in notices(translated, options.max_length or translator.context, translator.context):
        print(printable(line), file=sys.stderr)
    if options.json:
        about = {"run": str(run.path), "step": model.step, "damaged": run.damaged, "seconds": seconds, **metrics}
        records = [as_record(number, line, lines) for number, line in enumerate(translated)]
        print(printable(json.dumps({**about, "translations": records}, ensure_ascii=False)))
    else:
        for line, reference in zip(translated, lines.references, strict=True) if lines.examples else ():
            print(f"source       {line.line.text}\nreference    {reference}\ntranslation  {line.text}\n")
        print_metrics(metrics)
    if options.show:
        show_alignments(model, translated, picture, sys.stderr if options.json else sys.stdout)
    return 0


def run_for(texts: list[str], name: str | None, runs: Path) -> Run:
    """The run that translates the texts."""
    if name is None and texts and not has_runs(runs):
        raise UserError(
            f"there is no run in {runs} that translates {texts[0]!r}; train one first (regard train "
            "translate-transformer), or name one before the text: regard translate RUN TEXT"
        )
    return open_run(name, runs)


def split_positional(options: TranslateOptions) -> tuple[str | None, list[str], Path | None]:
    """The run, the texts and the picture's file among the positional arguments, in any order."""
    run, runs = options.run, options.runs
    words = [*([] if run is None else [run]), *options.text]
    pictures = (word for word in words if options.show and word.lower().endswith(PICTURES) and not is_run(word, runs))
    picture = next(pictures, None)
    if picture is not None:
        words.remove(picture)
    path = None if picture is None else Path(picture)
    for place in (0, -1):
        if words and is_run(words[place], runs):
            return words.pop(place), words, path
    # A single word is rather a mistyped name than a text, if the name of a run is similar.
    if run is not None and words and run == words[0] and " " not in run and run != "-" and _like_a_name(run, runs):
        return words.pop(0), words, path
    return None, words, path


def _like_a_name(word: str, runs: Path) -> bool:
    from regard.convert.published import MODELS

    names = [path.parent.name for path in runs.glob("[!.]*/config.toml")] if runs.is_dir() else []
    return "/" in word or word in MODELS or nearest(word, names) is not None


def has_runs(runs: Path) -> bool:
    return any(runs.glob("[!.]*/config.toml"))


def sentences_of_run(model: TranslationModel, run: Run, test: bool) -> Lines:
    """The test part of the run's data, or a few sentences of its validation part."""
    data = model.data()
    if test:
        if not data.test.sources:
            raise UserError(f"the run {run.path} has no test part; train with --data.test 0.05 to keep one back")
        return Lines(data.test.sources, data.test.targets)
    part = data.validation if data.validation.sources else data.test if data.test.sources else data.train
    count = len(part.sources)
    chosen = sorted({count * i // EXAMPLES for i in range(EXAMPLES)})
    return Lines([part.sources[i] for i in chosen], [part.targets[i] for i in chosen], examples=True)


def translate_lines(
    translator: Translator, lines: Lines, out: Path | None, quiet: bool
) -> tuple[list[TranslatedLine], float]:
    """Translate all lines and write each one to ``out``, or print it unless ``quiet``; also the seconds it took."""
    began, translated = time.perf_counter(), []
    terminal = out is None and sys.stdout.isatty()  # it would obey control characters
    try:
        stream = None if out is None else out.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from error
    with stream or contextlib.nullcontext():
        watched = stream is not None or quiet or not sys.stdout.isatty()  # else the printed lines are the progress
        with decoding(len(lines.texts)) if watched else contextlib.nullcontext(lambda count: None) as decoded:
            for line in translator.translate(lines.texts, decoded):
                translated.append(line)
                if stream is not None or not quiet:
                    text = output_lines(line, len(translated), translator.nbest)
                    print(printable(text) if terminal else text, file=stream, flush=stream is None)
    return translated, time.perf_counter() - began


@contextlib.contextmanager
def decoding(total: int) -> Iterator[Callable[[int], object]]:
    """A status line of how many lines are decoded; yields what to call with their number."""
    with waiting(f"0 of {total:,} lines") as say:
        yield lambda count: say(f"{count:,} of {total:,} lines", count / max(1, total))


def output_lines(line: TranslatedLine, number: int, nbest: int) -> str:
    """The output for one line of input: its translation, or a line of tab-separated columns for each of ``nbest``."""
    if nbest == 1:
        return line.text
    if not line.translations:
        return f"{number}\t1\t0\t"
    ranks = enumerate(line.translations, 1)
    return "\n".join(f"{number}\t{rank}\t{found.score:.4f}\t{text}" for rank, (text, found) in ranks)


def as_record(number: int, line: TranslatedLine, lines: Lines) -> JsonObject:
    """A translated line as JSON."""
    texts = [{"text": text, **found._asdict(), "tokens": len(found.tokens)} for text, found in line.translations]
    record = {"line": number + 1, "source": line.line.text, "text": line.text, "texts": texts}
    reference = {"reference": lines.references[number]} if lines.references else {}
    return {**record, "cut": line.line.truncated, "unknown": list(line.line.unknown), **reference}


def measure_translations(
    model: TranslationModel, lines: Lines, translated: Sequence[TranslatedLine], test: bool
) -> JsonObject:
    """BLEU and chrF; for the test part also those of the retrieval baseline, and BLEU by source length."""
    from regard.measure import RetrievalBaseline, bleu_by_length, compare, score

    outputs, references = [line.text for line in translated], lines.references
    metrics: JsonObject = {"scores": [one._asdict() for one in score(outputs, references)]}
    if not test:
        return metrics
    train = model.data().train
    baseline = RetrievalBaseline(train.sources, train.targets)
    retrieved = [baseline.translate(text) for text in lines.texts]
    buckets = bleu_by_length(lines.texts, outputs, references)
    metrics["baseline"] = [one._asdict() for one in score(retrieved, references)]
    metrics["difference"] = compare(retrieved, outputs, references)._asdict()
    metrics["by_length"] = [{"words": one.words, "size": one.size, "bleu": one.bleu} for one in buckets]
    return metrics


def print_metrics(metrics: JsonObject) -> None:
    """Print the result of `measure_translations` as text."""
    for one in metrics.get("scores", []):
        print(f"{one['name']:6}{one['value']:6.2f}   {one['signature']}")
    if "baseline" not in metrics:
        return
    scores = ", ".join(f"{one['name']} {one['value']:.2f}" for one in metrics["baseline"])
    difference = metrics["difference"]
    gain = difference["second"] - difference["first"]
    print(f"retrieval baseline (translation of the nearest training sentence by TF-IDF): {scores}")
    print(
        f"difference of the model to it: {gain:+.2f} BLEU (95% confidence interval {difference['low']:+.2f} to "
        f"{difference['high']:+.2f}, p = {difference['p']:.4f})"
    )
    print("BLEU by words of the source:")
    for one in metrics["by_length"]:
        print(f"  {one['words']:>6}  {one['bleu']:6.2f}   {one['size']:,} sentence{'s' * (one['size'] != 1)}")


def show_alignments(
    model: TranslationModel, translated: Sequence[TranslatedLine], picture: Path | None, stream: TextIO
) -> None:
    """Draw the word alignment of each best translation, in the terminal or as a picture."""
    import os
    import shutil

    from regard.look.pictures.align import align, draw

    best = [(line.line.tokens, line.translations[0].hypothesis.tokens) for line in translated if line.translations]
    alignments = [align(model.model, model.tokenizer, model.specials, *tokens) for tokens in best]
    if picture is not None:
        from regard.look.pictures.align import save

        save(alignments, picture)
        print(f"drawn in {picture}", file=sys.stderr)
        return
    color = stream.isatty() and not os.environ.get("NO_COLOR")
    for alignment in alignments:
        print(f"\n{draw(alignment, shutil.get_terminal_size().columns, color)}", file=stream)
