"""`regard look`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CheckpointOptions, check_parent
from regard.commands.lines import contents
from regard.config import option
from regard.errors import UserError
from regard.runs import Run
from regard.runs.disk import replace_file
from regard.runs.waiting import waiting


@dataclass(frozen=True)
class LookOptions(CheckpointOptions):
    """Options of `regard look`."""

    text: str | None = option(None, "the text to read; default: the last sample of the run's training")
    file: Path | None = option(None, "read the text from this file")
    pair: tuple[str, ...] = option((), "a source and its translation, for a translation model", metavar="SOURCE TARGET")
    out: Path | None = option(None, "the file to write; default: look.html in the run's folder")
    most: float = option(16.0, "maximum size of the file's data in megabytes; a long text is shown at lower resolution")


def look(options: LookOptions) -> int:
    """Show a model's attention on a text: one self-contained HTML file."""
    check(options)
    run = options.open()
    from regard.look.views.session import Session
    from regard.models.device import find_device
    from regard.serve.html_file import html_document, shown_text

    source, target = texts(options, run)
    with waiting("reading") as say:
        session = Session.load(run, find_device(options.device), options.step)
        trace = session.trace(source, target)
        say("drawing")
        html = html_document(trace, run.name, shown_text(source, target), int(options.most * 2**20)).encode()
    path = run.file("look.html") if options.out is None else options.out
    replace_file(path, html)
    about = trace.about()
    summary = {
        "run": str(run.path),
        "page": str(path),
        "bytes": len(html),
        "step": session.step,
        "damaged": run.damaged,
    }
    summary |= {"tokens": len(about["tokens"]), "attentions": len(about["attentions"]), "loss": about["loss"]}
    options.show(summary, str(path))
    return 0


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
