"""Lines of text for a command: their input, and notices about them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.generate.translation import TranslatedLine

NAMED = 8  # maximum number of lines or words that a notice lists


class Lines(NamedTuple):
    """Texts to translate and, if known, their reference translations."""

    texts: list[str]
    references: list[str]
    examples: bool = False  # sentences of the run's own data, shown with their references


def gathered(texts: Sequence[str], file: str | None, reference: Path | None) -> Lines:
    """The texts of the command line and the lines of the file; without both, those of standard input, if piped."""
    if (("-" in texts) + (file == "-") + (list(texts).count("-") > 1)) > 1:
        raise UserError("standard input can be read once only; give - once")
    lines = [line for text in texts for line in (split(standard_input()) if text == "-" else split(text) or [""])]
    if file is not None:
        read = read_lines(file)
        if not any(line.strip() for line in read):
            where = "standard input" if file == "-" else file
            raise UserError(f"there is nothing to translate in {where}; write a text on each line")
        lines += read
    elif not texts and sys.stdin is not None and not sys.stdin.isatty():
        lines = split(standard_input())
    references = [] if reference is None else split(contents(reference))
    if reference is not None and len(references) != len(lines):
        raise UserError(
            f"{reference} has {len(references):,} lines for {len(lines):,} texts; give one reference for each text"
        )
    return Lines(lines, references)


def split(text: str) -> list[str]:
    """The lines of a text; a final end of line starts no empty line."""
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n") if text else []


def read_lines(file: str) -> list[str]:
    """The lines of a file; - is standard input."""
    return split(standard_input() if file == "-" else contents(Path(file)))


def contents(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read: {why}") from error


def standard_input() -> str:
    """All of standard input."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError("standard input is not text in the terminal's encoding") from error


def notices(made: Sequence[TranslatedLine], most: int, context: int) -> list[str]:
    """Sentences about empty, truncated, unfinished and unknown input."""
    lines = [one.line for one in made]
    empty = [n for n, line in enumerate(lines, 1) if line.empty and not line.unknown]
    cut = [n for n, line in enumerate(lines, 1) if line.truncated]
    stopped = [n for n, one in enumerate(made, 1) if one.translations and not one.translations[0].hypothesis.ended]
    strange = [f"{word!r} (line {n})" for n, line in enumerate(lines, 1) for word in line.unknown]
    notes = []
    if empty:
        notes.append(f"{numbered(empty)} empty: nothing was translated, and the line of output is empty too")
    if cut:
        notes.append(f"{numbered(cut)} longer than the {context} tokens that the model reads: the rest was left out")
    if stopped:
        notes.append(f"the translation of {numbered(stopped, verb=False)} did not end and was cut at {most} tokens")
    if strange:
        notes.append(f"unknown to the vocabulary: {named(strange)}")
    return notes


def numbered(numbers: Sequence[int], verb: bool = True) -> str:
    """The line numbers as the subject of a sentence, with its verb.

    >>> numbered([3]), numbered([3, 4, 9])
    ('line 3 is', 'lines 3, 4, 9 are')
    """
    if len(numbers) == 1:
        return f"line {numbers[0]}" + " is" * verb
    return f"lines {named([str(number) for number in numbers])}" + " are" * verb


def named(things: Sequence[str]) -> str:
    """The first few items of a list, and the number of the others."""
    more = f" and {len(things) - NAMED:,} more" if len(things) > NAMED else ""
    return ", ".join(things[:NAMED]) + more
