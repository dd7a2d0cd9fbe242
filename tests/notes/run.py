"""Runs pages of docs/notes and prints what fails, and how long each block takes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import docs_run
from docs_kit import ROOT

PICTURES = ROOT / "docs" / "pictures" / "notes"


def run(pages: list[Path], folder: Path) -> dict[str, str]:
    """Run each page in a folder of its own, named like it; the errors by place."""
    base = docs_run.prepare(folder)
    errors: dict[str, str] = {}
    for page in pages:
        copy = folder / page.stem
        shutil.copytree(base, copy)
        errors |= docs_run.run_page(page, copy, slow=False)
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", action="store_true", help="copy the drawings to docs/pictures/notes")
    parser.add_argument("--folder", type=Path, help="where to run; default: a temporary folder")
    parser.add_argument("pages", nargs="+", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("DOCS_TIMES", "1")
    with tempfile.TemporaryDirectory() as made:
        folder = (options.folder or Path(made)).resolve()
        errors = run([page.resolve() for page in options.pages], folder)
        os.chdir(ROOT)
        for picture in folder.glob("*/*.svg") if options.pictures else ():
            PICTURES.mkdir(exist_ok=True)
            shutil.copy(picture, PICTURES)
    print(json.dumps(errors, indent=1))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
