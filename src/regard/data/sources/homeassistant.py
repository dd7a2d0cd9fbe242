"""Home Assistant: the sentences of a program's interface in English, German, French and Italian.

They come from the wheel `homeassistant` 2026.9.4, in which every component has a file of texts per language; texts
are put side by side by their key. A row is a component, then what the text is in each language. Left out are

- English texts of fewer than three words: what stands on a button says little without its place ("Off" has six
  French translations);
- a text that is more than words: placeholders, links, markup, code, several lines. White space, among it the French
  no-break space, is one plain space;
- a translation that is the English text itself: names, and what nobody has translated yet;
- rows that were there before, and those with no translation left.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source, SourceFile
from regard.data.translation.sentence_pairs import table

_LANGUAGES = ("en", "de", "fr", "it")
_FOLDER = "homeassistant/components/"
_MARKS = re.compile(r"[{}\[\]<>`*_|\\\n]|%\S*%|://|www\.")
_WORDS = 3  # of English, at least
_Key = tuple[str, ...]  # the names on the way to a text


def _assemble(members: Mapping[str, bytes]) -> dict[str, bytes]:
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
    return {"homeassistant.tsv": table(_LANGUAGES, ((group, *row) for row, group in rows.items()))}


def _leaves(texts: Mapping[str, Any], path: _Key = ()) -> Iterator[tuple[_Key, str]]:
    for name, value in texts.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _plain(text: str) -> str:
    """The text, or nothing if it is more than words."""
    return "" if _MARKS.search(text.strip()) else " ".join(text.split())


SOURCE = Source(
    name="homeassistant",
    title="Home Assistant's interface in English, German, French and Italian",
    license="Apache License 2.0",
    terms="the authors of Home Assistant (LICENSE.md in the package covers all of it): passing the texts on asks for "
    "the license and for saying what was changed",
    files=(
        SourceFile("homeassistant.tsv", "bc072f9449e0463bf62bf1a36a72b3ee2603dcc68384047157f2c0b1e3c59c7b", 3_070_613),
    ),
    origins=(
        Wheel(
            package="homeassistant",
            version="2026.9.4",
            sha256="2a0ab1910af7b701cf1c8e5ed1d4b7caaa010f89e807c25d824a5805c91abb2c",
            members=tuple(f"{_FOLDER}*/translations/{language}.json" for language in _LANGUAGES),
            assemble=_assemble,
        ),
    ),
    languages=_LANGUAGES,
)
