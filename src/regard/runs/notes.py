"""notes.json: tags and a note that a person writes about a run, for example on the page."""

import json
from typing import NamedTuple

from regard.errors import UserError
from regard.runs.disk import parse_object, replace_file
from regard.runs.folder import Run
from regard.untrusted import read_plain

FILE = "notes.json"
TAGS, TAG, NOTE = 16, 40, 4000  # tags of a run, characters of a tag and of a note


class RunNotes(NamedTuple):
    """Tags and a free text."""

    tags: list[str]
    note: str


def read_notes(run: Run) -> RunNotes:
    """The notes on a run; empty if there are none or the file is damaged."""
    try:
        values = parse_object(read_plain(run.file(FILE)))
    except (OSError, ValueError):
        return RunNotes([], "")
    tags, note = values.get("tags"), values.get("note")
    listed = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return RunNotes(listed, note if isinstance(note, str) else "")


def write_notes(run: Run, tags: list[str], note: str) -> None:
    """Replace the notes on a run."""
    if len(tags) > TAGS or any(not tag.strip() or len(tag) > TAG for tag in tags) or len(note) > NOTE:
        raise UserError(f"a run has at most {TAGS} tags of 1 to {TAG} characters, and a note of {NOTE:,} characters")
    replace_file(run.file(FILE), json.dumps({"tags": tags, "note": note}, ensure_ascii=False).encode())
