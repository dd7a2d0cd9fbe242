"""`regard look`."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.commands.common import RUNS, RunName, open_run
from regard.commands.waiting import waiting
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run

Pair = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE TARGET")]


def look(
    run: RunName = None,
    /,
    *,
    text: str | None = None,
    file: Path | None = None,
    pair: Pair = (),
    out: Path | None = None,
    step: int | None = None,
    most: float = 16.0,
    device: str = "auto",
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """What a model looks at when it reads a text: one page in one file, with nothing fetched from anywhere.

    Args:
        run: The run's folder or name; by default the newest run.
        text: What it reads; by default what it wrote itself as the last sample of its training.
        file: What it reads, out of a file of text.
        pair: A text and its translation, for a model that translates.
        out: The file to write; by default look.html in the run's folder.
        step: A checkpoint's step; by default the newest.
        most: Megabytes of data that the file may hold; a long text is shown more coarsely.
        device: Where the model runs: auto, cpu, cuda, mps.
        runs: The folder that holds runs.
        json: Print where it is, and what is in it, as JSON.
    """
    if (text is not None) + (file is not None) + bool(pair) > 1:
        raise UserError("give one thing to read: --text TEXT, --file FILE or --pair SOURCE TARGET")
    if pair and len(pair) != 2:
        raise UserError(f"--pair takes a text and its translation, not {len(pair)} texts; quote each of the two")
    if not 1 <= most <= 1024:
        raise UserError(f"--most must be from 1 to 1024 megabytes, not {most:g}")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for --out {out}; make it first")
    found = open_run(run, runs)
    from regard.commands.lines import contents
    from regard.generate.load import find_device
    from regard.look.views.session import Session
    from regard.runs.disk import replace_file, writing
    from regard.serve.html_file import html_document

    source, other = pair if pair else (contents(file) if file is not None else text, None)
    if source is None:
        source = _sample(found)
        print("reading the last sample of the run's training; --text TEXT reads another", file=sys.stderr)
    with waiting("reading") as say:
        session = Session.load(found, find_device(device), step)
        trace = session.trace(source, other)
        say("drawing")
        html = html_document(trace, found.name, source, int(most * 2**20)).encode()
    path = found.file("look.html") if out is None else out
    with writing(str(path)):
        replace_file(path, html)
    if json:
        about = trace.about()
        told = {"run": str(found.path), "page": str(path), "bytes": len(html), "step": session.step}
        told |= {"tokens": len(about["tokens"]), "attentions": len(about["attentions"]), "loss": about["loss"]}
        print(jsonlib.dumps(told))
    else:
        print(path)
    return 0


def _sample(run: Run) -> str:
    """What the run itself wrote last, where nothing else is given to read."""
    written = [f"{one.get('prompt', '')}{one['text']}" for one in run.samples() if isinstance(one.get("text"), str)]
    if not written or not written[-1].strip():
        raise UserError("give what is to be read: --text TEXT, --file FILE or --pair SOURCE TARGET")
    return written[-1].strip()
