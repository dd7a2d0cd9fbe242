"""Write docs/notes/index.md from the tables at the end of the pages: python docs/notes_index.py [--missing FOLDER].

With --missing, list the headings of the notes in FOLDER (text files, not part of this repository) that no row has.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent / "notes"
#: In the order of the notes.
PAGES = ["recurrent", "seq2seq", "attention", "heads", "blocks", "positions", "theory", "sequences", "training"]
PAGES += ["computing", "efficient", "language", "reading", "questions", "errata"]
TABLE = "| notes | item | section | code | test |\n|---|---|---|---|---|\n"
HEAD = """# The notes

Notes on attention and Transformers as pages that run: each formula, a reference of about twenty lines, the part of
regard that serves it, and an assertion that ties them. `make test` executes every block of every page.

```sh
regard learn --no-browser             # writes the pages and the notebooks as HTML without links to the network
```

Without `--no-browser` the browser opens them; `regard learn attention` or `regard learn lab` opens one.

"""
#: The lab and the projects, in this order.
NOTEBOOKS = ["lab", "long_sequences", "patterns", "efficient_variant", "new_domain"]
PROJECTS = """
## Notebooks

The lab and the four projects of the notes, each to be run from top to bottom in one to four minutes on one CPU core.
The tests run them at a small scale; `python docs/run_notebooks.py` runs them as they are, and draws their pictures.

"""
TABLES = """
## Every item of the notes

Five sets of notes are the source, numbered 000 to 004; the longest, 003, are the slides of a lecture. Each of their
headings (in italics) and claims is a row here, with the section that has it, the code and the test.
"""


class Row(NamedTuple):
    """An item of the notes."""

    page: str
    notes: str
    item: str
    section: str
    code: str
    test: str

    @property
    def headings(self) -> list[str]:
        return re.findall(r"(?<![\w*])\*([^*]+)\*(?![\w*])", self.item)

    @property
    def anchor(self) -> str:
        found = re.fullmatch(r"\[[^\]]+\]\(#([^)]+)\)", self.section)
        assert found, f"{self.page}.md: {self.section} is no link to a section of the page"
        return found[1]


def rows(page: str) -> list[Row]:
    """The last section of a page."""
    _, found, table = (HERE / f"{page}.md").read_text("utf-8").partition(f"\n## Items of the notes\n\n{TABLE}")
    assert found, f"{page}.md has no section `Items of the notes` with the columns {TABLE.splitlines()[0]}"
    return [
        Row(page, *(cell.strip() for cell in line.strip().strip("|").split("|"))) for line in table.splitlines() if line
    ]


def title(page: str) -> str:
    return (HERE / f"{page}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")


def notebook(name: str) -> str:
    """The item of a notebook in the list."""
    first = json.loads((HERE.parent / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"][0]["source"][0]
    return f"- [{first.strip().removeprefix('# ')}](../notebooks/{name}.ipynb)"


def existing() -> list[str]:
    return [page for page in PAGES if (HERE / f"{page}.md").exists()]


def index() -> str:
    pages = [f"{n}. [{title(page)}]({page}.md)" for n, page in enumerate(existing(), 1)]
    parts = [HEAD, "\n".join(pages), "\n", PROJECTS, "\n".join(map(notebook, NOTEBOOKS)), "\n", TABLES]
    for page in existing():
        lines = ["", f"### {title(page)}", "", TABLE.rstrip()]
        for row in rows(page):
            section = row.section.replace("](#", f"]({page}.md#")
            lines.append(f"| {row.notes} | {row.item} | {section} | {row.code} | {row.test} |")
        parts.append("\n".join([*lines, ""]))
    return "".join(parts)


def headings(text: str) -> Iterator[str]:
    """The headings of a set of notes: those of Markdown, or short lines that are neither items nor formulas."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    marked = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    lines = marked if len(marked) > 10 else [line for line in text.splitlines() if is_heading(line)]
    for line in lines:
        yield plain(line)


#: How lines begin or end that are sentences, cells, drawings, labels or formulas.
NOT_HEADINGS = re.compile(
    r"[.:;,\"`]$|\*\*|\]\(|→|✓|=|\||\t|^\w+ (are|is) |\[Transformer|^\[.*\]$|^QK|\$ and \$"
    r"|^(But|So|Now|Each|This|Thus|Let|If|Add|Remember|Given|Assume|For each|Crucial|Original|Raw|Total|Setup)\b"
    r"|^(Word|Weight|Element|Position|Patches|Rich)\b|^(Modern Transformers pre|Attention weights|User types)"
    r"|^(Keys and values|Decoder Input|Layer Output|Why we separate what)"
    r"|^(Core Idea|Key [iI]nsight|Challenge|Issue|Problem|Observation|Claim|Theorem): "
)


def is_heading(line: str) -> bool:
    words = re.sub(r"^\d+(\.\d+)*[.)]? ", "", line)
    return bool(re.match(r"[A-Z1\[]", words)) and 2 < len(words) < 76 and not NOT_HEADINGS.search(words)


def plain(heading: str) -> str:
    """Without numbers and punctuation at the ends, so that it can be compared."""
    return re.sub(r"\W+", " ", re.sub(r"^\d+(\.\d+)*\.? ", "", heading)).strip().lower()


def missing(folder: Path) -> list[tuple[str, str]]:
    """The headings of each set of notes that no row of that set has."""
    have = {
        (notes, plain(heading))
        for page in existing()
        for row in rows(page)
        for notes in row.notes.split()
        for heading in row.headings
    }
    found = []
    for file in sorted(folder.glob("*.txt")):
        notes = file.name.partition("_")[0]
        found += [
            (notes, heading)
            for heading in dict.fromkeys(headings(file.read_text("utf-8")))
            if (notes, heading) not in have
        ]
    return found


if __name__ == "__main__":
    if "--missing" in sys.argv:
        for notes, heading in missing(Path(sys.argv[2])):
            print(notes, heading)
    else:
        (HERE / "index.md").write_text(index(), "utf-8")
