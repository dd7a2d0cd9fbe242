"""Home Assistant: the sentences of a program's interface in English, German, French and Italian.

From the wheel `homeassistant` 2026.9.4, in which every component has a file of texts per language; texts are aligned
by their key. A row is a component, then the text in each language. Whitespace, including the French no-break space,
becomes one space. Dropped are

- English texts of fewer than three words, which are ambiguous without context ("Off" has six French translations);
- texts with placeholders, links, markup, code or several lines;
- translations that equal the English text: names and untranslated texts;
- repeated rows, and rows without a translation.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source
from regard.data.translation.sentence_pairs import table

_LANGUAGES = ("en", "de", "fr", "it")
_FOLDER = "homeassistant/components/"
_MARKS = re.compile(r"[{}\[\]<>`*_|\\\n]|%\S*%|://|www\.")
_WORDS = 3  # of English, at least
_Key = tuple[str, ...]  # the path of a text in the JSON file


def _assemble(members: Mapping[str, bytes]) -> bytes:
    texts: dict[str, dict[str, dict[_Key, str]]] = {}
    for member, content in members.items():
        component, _, language = member.removeprefix(_FOLDER).removesuffix(".json").split("/")
        texts.setdefault(component, {})[language] = dict(_leaves(json.loads(content)))
    rows: dict[tuple[str, ...], str] = {}  # texts -> the first component that has them
    for component, languages in sorted(texts.items()):
        for key, english in sorted(languages["en"].items()):
            first, *others = (_plain(languages.get(language, {}).get(key, "")) for language in _LANGUAGES)
            others = ["" if other == first else other for other in others]
            if len(english.split()) >= _WORDS and first and any(others):
                rows.setdefault((first, *others), component)
    return table(_LANGUAGES, ((group, *row) for row, group in rows.items()))


def _leaves(texts: Mapping[str, Any], path: _Key = ()) -> Iterator[tuple[_Key, str]]:
    for name, value in texts.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _plain(text: str) -> str:
    """The text with single spaces; empty if it contains markup."""
    return "" if _MARKS.search(text.strip()) else " ".join(text.split())


SOURCE = Source(
    name="homeassistant",
    title="Home Assistant's interface in English, German, French and Italian",
    license="Apache License 2.0",
    terms="the authors of Home Assistant (LICENSE.md in the package covers all of it): redistribution of the texts "
    "requires the license and a statement of changes",
    file="homeassistant.tsv",
    sha256="bc072f9449e0463bf62bf1a36a72b3ee2603dcc68384047157f2c0b1e3c59c7b",
    size=3_070_613,
    origin=Wheel(
        package="homeassistant",
        version="2026.9.4",
        sha256="2a0ab1910af7b701cf1c8e5ed1d4b7caaa010f89e807c25d824a5805c91abb2c",
        members=tuple(f"{_FOLDER}*/translations/{language}.json" for language in _LANGUAGES),
        assemble=_assemble,
    ),
    languages=_LANGUAGES,
)
