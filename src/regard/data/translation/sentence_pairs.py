"""Sentence pairs: from the table of a source, a file of pairs, or two aligned files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.origins.progress import say
from regard.data.texts.formats import unreadable
from regard.errors import UserError

_UNIQUE = 0.8  # of the lines: a third column with more different values is no group


class SentencePairs(NamedTuple):
    """Sentences, their translations, and the group of each pair: a chapter, a component, a document."""

    sources: list[str]
    targets: list[str]
    groups: list[str]  # a group is never split between training and evaluation

    @classmethod
    def of(cls, triples: Iterable[tuple[str, str, str]]) -> "SentencePairs":
        """From (source, target, group)."""
        columns = [list(column) for column in zip(*triples, strict=True)]
        return cls(*columns) if columns else cls([], [], [])

    def pick(self, numbers: Iterable[int]) -> "SentencePairs":
        """The pairs with these indices, in this order."""
        chosen = list(numbers)
        return SentencePairs(*([column[number] for number in chosen] for column in self))

    @property
    def count(self) -> int:
        """Number of pairs (``len`` counts the columns of the tuple)."""
        return len(self.sources)


def table(languages: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """The file of a source in several languages: tab-separated, a header, then a group and its texts per line.

    A missing text is empty.
    """
    lines = [("group", *languages), *rows]
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def read_table(path: Path, source: str, target: str) -> SentencePairs:
    """The pairs of two languages of a table, without repetitions and pairs of equal sides."""
    names, *rows = (line.split("\t") for line in _lines(path))
    one, other = names.index(source), names.index(target)
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        if row[one] and row[other] and row[one] != row[other]:
            found.setdefault((row[one], row[other]), row[0])
    return SentencePairs.of((*pair, group) for pair, group in found.items())


def read_pairs(given: str, source: str, target: str) -> SentencePairs:
    """The pairs of a file (source, tab, target and optionally a third column per line) or of two aligned files.

    The latter are named by their common prefix: `train` for `train.en` and `train.de`. The third column is the
    group of a pair, unless it differs on nearly every line, like an attribution. The group of a pair without one is
    its source, so that the same sentence is never in two parts.
    """
    path = Path(given).expanduser()
    sides = [path.with_name(f"{path.name}.{language}") for language in (source, target)]
    if path.is_file():
        rows = _grouped(path, [_columns(path, number, line) for number, line in enumerate(_lines(path), 1)])
    elif all(side.is_file() for side in sides):
        first, second = (_lines(side) for side in sides)
        if len(first) != len(second):
            raise UserError(
                f"{sides[0]} has {len(first):,} lines and {sides[1]} has {len(second):,}, but line by line they should "
                "be translations of each other; give files that are aligned"
            )
        rows = [(one.strip(), other.strip(), "") for one, other in zip(first, second, strict=True)]
    else:
        raise UserError(
            f"there is neither a file of pairs {path} nor the two files {sides[0].name} and {sides[1].name} beside it; "
            "check the path, and --data.languages"
        )
    whole = [(one, other, group or one) for one, other, group in rows if one and other]
    if not whole:
        raise UserError(f"{path} has no pair; give a file with a sentence, a tab and its translation per line")
    if missing := len(rows) - len(whole):
        say(f"{path}: {missing:,} of {len(rows):,} lines lack one side of the pair and are skipped")
    return SentencePairs.of(whole)


def _columns(path: Path, number: int, line: str) -> tuple[str, str, str]:
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) not in (2, 3) and line.strip():
        raise UserError(
            f"line {number} of {path} has {len(columns)} columns, but should be a sentence, a tab and its translation, "
            "and perhaps a tab and a group or an attribution"
        )
    source, target, group, *_ = (*columns, "", "")
    return source, target, group


def _grouped(path: Path, rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows without their third column where it cannot be a group; says what it was taken for."""
    third = [group for *_, group in rows if group]
    if not third:
        return rows
    different = len(set(third))
    if different <= max(1, _UNIQUE * len(third)):
        say(f"{path}: the third column is taken for groups ({different:,}); none is split between the parts")
        return rows
    say(
        f"{path}: the third column is ignored, as an attribution: it differs on {different:,} of {len(third):,} lines; "
        "pairs with the same source sentence stay in one part"
    )
    return [(source, target, "") for source, target, _ in rows]


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file. Only a newline ends one: a sentence may contain other line breaks."""
    try:
        raw = path.read_bytes()
        lines = raw.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"line {line} of {path} is not UTF-8 text; convert the file") from None
    return lines[:-1] if lines[-1] == "" else lines
