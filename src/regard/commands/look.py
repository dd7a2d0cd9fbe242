"""`regard look`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.commands.common import CheckpointOptions, check_parent
from regard.commands.lines import contents
from regard.config import option
from regard.errors import UserError
from regard.runs import Run
from regard.runs.disk import replace_file
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.look.views.trace import Trace


class Seen(NamedTuple):
    """What the page shows."""

    trace: Trace
    shown: str  # the text, or the name of the array
    step: int | None  # of the checkpoint
    picture: str | None = None  # an SVG of the array


@dataclass(frozen=True)
class LookOptions(CheckpointOptions):
    """Options of `regard look`."""

    text: str | None = option(None, "the text to read; default: the last sample of the run's training")
    file: Path | None = option(
        None, "read the text from this file; for a run on images, an image, and so on (default: its own)"
    )
    pair: tuple[str, ...] = option((), "a source and its translation, for a translation model", metavar="SOURCE TARGET")
    out: Path | None = option(None, "the file to write; default: look.html in the run's folder")
    most: float = option(16.0, "maximum size of the file's data in megabytes; a long text is shown at lower resolution")


def look(options: LookOptions) -> int:
    """Show a model's attention on a text, an image or another array: one self-contained HTML file."""
    check(options)
    run = options.open()
    from regard.models.base import ModelConfig
    from regard.serve.html_file import html_document

    config = run.load(ModelConfig, "model")
    texts_only = config.reads == "text" or (options.text is not None and config.vocabulary)
    seen = look_at_text if texts_only else look_at_array
    with waiting("reading") as say:
        trace, shown, step, picture = seen(options, run)
        say("drawing")
        html = html_document(trace, run.name, shown, int(options.most * 2**20), picture).encode()
    path = run.file("look.html") if options.out is None else options.out
    replace_file(path, html)
    about = trace.about()
    summary = {"run": str(run.path), "page": str(path), "bytes": len(html), "step": step, "damaged": run.damaged}
    summary |= {"tokens": len(about["tokens"]), "attentions": len(about["attentions"]), "loss": about["loss"]}
    options.show(summary, str(path))
    return 0


def look_at_text(options: LookOptions, run: Run) -> Seen:
    """The attentions of a text."""
    from regard.look.views.session import Session
    from regard.models.device import find_device
    from regard.serve.html_file import shown_text

    source, target = texts(options, run)
    session = Session.load(run, find_device(options.device), options.step)
    return Seen(session.trace(source, target), shown_text(source, target), session.step)


def look_at_array(options: LookOptions, run: Run) -> Seen:
    """Those of an image or another array: a file, or the first held-out example of the run."""
    from regard.data import ExampleData
    from regard.data.scenes.grammar import caption_of
    from regard.generate.load import load_trained
    from regard.look.views.arrays import array_trace, attention_received, caption_trace, first_row, linked_picture
    from regard.models import ArrayEncoder, Captioner
    from regard.models.device import find_device
    from regard.train import Experiment

    experiment = run.load(Experiment)
    if options.text is not None or options.pair:
        raise UserError(f"{run.path} reads {experiment.model.reads}; give one: --file FILE")
    loaded = load_trained(run, find_device(options.device), options.step)
    if options.file is not None:
        examples = experiment.data.read_examples(options.file, loaded.model.config)
    else:
        data = experiment.data.build(experiment.model.context)
        examples = [data.shown()] if isinstance(data, ExampleData) else []
    if not examples or examples[0] is None:
        raise UserError("this run holds no examples out; give one: --file FILE")
    one = examples[0]
    name, model = one.name, loaded.model
    if isinstance(model, Captioner):
        text = caption_of if loaded.tokenizer is None else loaded.tokenizer.decode
        trace, encoder = caption_trace(model, one.batch.inputs, text), model.encoder
    else:
        trace = array_trace(model, one.batch.arguments, one.parts)  # refuses other models
        assert isinstance(model, ArrayEncoder)
        encoder = model
    drawn = linked_picture(model, one.batch.arguments, trace, name)
    if drawn is None and not (isinstance(model, Captioner) and encoder.summarizes):
        weights = attention_received(trace, encoder.before)
        drawn = experiment.data.picture(one.batch, weights, model.config)
        if len(weights) > 1:
            trace, name = first_row(trace), f"{name}; the maps are those of the first of {len(weights)} series"
    return Seen(trace, name, loaded.step, drawn)


def check(options: LookOptions) -> None:
    """Refuse contradictory options before torch is imported."""
    if (options.text is not None) + (options.file is not None) + bool(options.pair) > 1:
        raise UserError("give one text: --text TEXT, --file FILE or --pair SOURCE TARGET")
    if options.pair and len(options.pair) != 2:
        raise UserError(
            f"--pair takes a text and its translation, not {len(options.pair)} texts; quote each of the two"
        )
    if not 1 <= options.most <= 1024:
        raise UserError(f"--most must be from 1 to 1024 megabytes, not {options.most:g}")
    check_parent(options.out)


def texts(options: LookOptions, run: Run) -> tuple[str, str | None]:
    """The text to read and, for a pair, its translation."""
    if options.pair:
        return options.pair[0], options.pair[1]
    if run.config.get("data", {}).get("kind") == "pairs":
        raise UserError(f"{run.path} is a translation model; give both texts: --pair SOURCE TRANSLATION")
    if options.file is not None:
        return contents(options.file), None
    if options.text is not None:
        return options.text, None
    print("reading the last sample of the run's training; --text TEXT reads another", file=sys.stderr)
    samples = [f"{one.get('prompt', '')}{one['text']}" for one in run.samples() if isinstance(one.get("text"), str)]
    if not samples or not samples[-1].strip():
        raise UserError("give the text to read: --text TEXT, --file FILE or --pair SOURCE TARGET")
    return samples[-1].strip(), None
