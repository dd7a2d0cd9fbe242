"""Write the tables and pictures of docs/results/compare.md: python docs/comparison.py FOLDER/compare.json."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.compare.page import by_position, curves
from regard.compare.result import ArchitectureComparison
from regard.compare.words import sentences, table, title
from regard.pages.html import chart_picture

HERE = Path(__file__).parent
MARK = "<!-- figures -->"


def figures(comparison: ArchitectureComparison, pictures: Path) -> str:
    """The Markdown of every length; its pictures are written into the folder."""
    parts = [comparison.setting + ".", "", *(f"- {line}" for line in sentences(comparison))]
    for place, length in enumerate(comparison.lengths):
        columns, rows = table(comparison, place)
        align = ["---", *("---:" for _ in columns[1:])]
        parts += ["", f"## {title(length)}", ""]
        parts += [f"| {' | '.join(line)} |" for line in (columns, align, *rows)]
        file = f"compare-{length.measure}.svg"
        charts = [*curves(comparison, place), *by_position(comparison, place)]
        about = f"Loss against time, FLOPs and tokens, and by position. {title(length)}"
        (pictures / file).write_text(chart_picture(charts, title(length), about), encoding="utf-8")
        parts += ["", f"![{about}](../pictures/{file})"]
    return "\n".join(parts)


def main(record: Path, page: Path = HERE / "results" / "compare.md", pictures: Path = HERE / "pictures") -> None:
    """Replace what is between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARK)
    _, _, after = rest.rpartition(MARK)
    text = figures(ArchitectureComparison.read(record), pictures)
    page.write_text(f"{before}{MARK}\n\n{text}\n\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
