"""Lines of text in and out of a command: where they come from, how far it is, and what was odd about them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.generate.translation import TranslatedLine

T = TypeVar("T")
NAMED = 8  # lines or words that a notice names


class Lines(NamedTuple):
    """Texts to translate, and what they should become, where somebody knows."""

    texts: list[str]
    references: list[str]
    where: str
    examples: bool = False  # nobody asked for these: they are shown with their references


def gathered(texts: Sequence[str], file: str | None, reference: Path | None) -> Lines:
    """What was given on the command line, then the file's lines; else what is piped in; perhaps nothing."""
    if (("-" in texts) + (file == "-") + (list(texts).count("-") > 1)) > 1:
        raise UserError("standard input can be read once only; give - once")
    lines = [line for text in texts for line in (split(standard_input()) if text == "-" else split(text) or [""])]
    where = "the command line"
    if file is not None:
        read = split(standard_input() if file == "-" else contents(Path(file)))
        where = "standard input" if file == "-" else file
        if not any(line.strip() for line in read):
            raise UserError(f"there is nothing to translate in {where}; write a text on each line")
        lines += read
    elif not texts and sys.stdin is not None and not sys.stdin.isatty():
        lines, where = split(standard_input()), "standard input"
    references = [] if reference is None else split(contents(reference))
    if reference is not None and len(references) != len(lines):
        raise UserError(
            f"{reference} has {len(references):,} lines for {len(lines):,} texts; give one reference for each text"
        )
    return Lines(lines, references, where)


def split(text: str) -> list[str]:
    """The lines of a text; an end of line at its very end begins no further one."""
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n") if text else []


def contents(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read: {why}") from error


def standard_input() -> str:
    """All of it."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError("standard input is not text in the terminal's encoding") from error


def progress(made: Iterable[T], total: int) -> Iterator[T]:
    """What is made, with a line on standard error now and then, once it takes more than two seconds: how far it is."""
    terminal = sys.stderr.isatty()
    began = time.monotonic()
    due, said = began + 2, False
    for done, one in enumerate(made, 1):
        yield one
        now = time.monotonic()
        if now > due and done < total:
            due, said = now + (0.5 if terminal else 10), True
            left = (now - began) / done * (total - done)
            line = f"{done:,} of {total:,} lines, about {left:,.0f} s left"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
    if said and terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def notices(made: Sequence[TranslatedLine], most: int, context: int) -> list[str]:
    """What a person should know about the lines, each a sentence that names them."""
    lines = [one.line for one in made]
    empty = [n for n, line in enumerate(lines, 1) if line.empty and not line.unknown]
    cut = [n for n, line in enumerate(lines, 1) if line.truncated]
    stopped = [n for n, one in enumerate(made, 1) if one.translations and not one.translations[0].hypothesis.ended]
    strange = [f"{word!r} (line {n})" for n, line in enumerate(lines, 1) for word in line.unknown]
    told = []
    if empty:
        told.append(f"{numbered(empty)} empty: nothing was translated, and the line of output is empty too")
    if cut:
        told.append(f"{numbered(cut)} longer than the {context} tokens that the model reads: the rest was left out")
    if stopped:
        told.append(f"the translation of {numbered(stopped, verb=False)} came to no end and was cut at {most} tokens")
    if strange:
        told.append(f"unknown to the vocabulary: {named(strange)}")
    return told


def numbered(numbers: Sequence[int], verb: bool = True) -> str:
    """Which lines these are, and the verb that follows.

    >>> numbered([3]), numbered([3, 4, 9])
    ('line 3 is', 'lines 3, 4, 9 are')
    """
    if len(numbers) == 1:
        return f"line {numbers[0]}" + " is" * verb
    return f"lines {named([str(number) for number in numbers])}" + " are" * verb


def named(things: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(things) - NAMED:,} more" if len(things) > NAMED else ""
    return ", ".join(things[:NAMED]) + more
