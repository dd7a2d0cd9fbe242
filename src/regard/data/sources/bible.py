"""The Bible in English (King James Version) and German (Luther, 1912), verse by verse.

From the wheel `bibleit` 0.0.26, which has one file per translation and one line per verse; its other translations are
under copyright and never read. Verses are aligned by book, chapter and number. A row is a chapter, then the verse in
both languages. From the English, the marks around words supplied by the translators, notes and subscriptions are
removed; whitespace becomes one space. Chapters in which a file lacks a verse, or has one twice, are dropped, since
the following verses are misaligned.

The package does not name its edition of Luther. By its wording (1 Corinthians 13:1, 1 John 5:8) it is that of 1912.
"""

import re
from collections.abc import Mapping

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source
from regard.data.translation.sentence_pairs import table

_VERSE = re.compile(r"(.+?) (\d+):(\d+) (.*)")
_NOTE = re.compile(r"\{[^{}]*(?::|\.\.\.|; or,| copies )[^{}]*\}|«.*»")
_ABSENT = "N/A"


def _assemble(members: Mapping[str, bytes]) -> bytes:
    english, german = (_chapters(content.decode()) for content in members.values())
    rows = []
    for place, (name, verses) in english.items():
        others = german[place][1]
        if list(verses) == list(others) and _ABSENT not in (*verses.values(), *others.values()):
            rows += [(name, _plain(verse), _plain(others[number])) for number, verse in verses.items()]
    return table(("en", "de"), rows)


def _chapters(text: str) -> dict[tuple[int, str], tuple[str, dict[str, str]]]:
    """(number of the book, chapter) -> (name of the chapter, verses by number); the order of the books is the same."""
    books: dict[str, int] = {}
    chapters: dict[tuple[int, str], tuple[str, dict[str, str]]] = {}
    for line in text.splitlines():
        match = _VERSE.fullmatch(line)
        assert match is not None  # the archive is the pinned one
        book, chapter, number, verse = match.groups()
        place = books.setdefault(book, len(books)), chapter
        verses = chapters.setdefault(place, (f"{book} {chapter}", {}))[1]
        verses[number] = _ABSENT if number in verses else verse.strip()
    return chapters


def _plain(verse: str) -> str:
    """The verse without notes and marks."""
    return " ".join(re.sub(r"[{}\[\]]", "", _NOTE.sub("", verse)).lstrip(" -").split())


SOURCE = Source(
    name="bible",
    title="The Bible in English (King James) and German (Luther 1912)",
    license="public domain",
    terms="translations of 1611 and 1912, too old for copyright (in the United Kingdom printing the former is a right "
    "of the Crown); the package is MIT and does not mention the texts",
    file="bible.tsv",
    sha256="1f0153a60ea937548e894954262a17bea016d16a220a1b13fa050c90bf565026",
    size=8_460_712,
    origin=Wheel(
        package="bibleit",
        version="0.0.26",
        sha256="f73bd47682f842a48ee9d48611bd77e726b386251125860a41341b3a04625c01",
        members=("bibleit/translations/kjv", "bibleit/translations/lut"),
        assemble=_assemble,
    ),
    languages=("en", "de"),
)
