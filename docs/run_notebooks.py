"""Run notebooks and keep the pictures that they draw: python docs/run_notebooks.py [NAME ...] [--out FOLDER].

Without names, all of them; without a folder, the pictures of the site are replaced. NOTEBOOK_SCALE=0.05 in the
environment trains a twentieth as long, NOTEBOOK_TEXT names a text file to read in place of the plays.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent / "notebooks"


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def execute(path: Path) -> int:
    """Run the cells in order in one namespace, as Jupyter does; 1 and the cell's number if one fails."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(code_cells(path), 1):
        began = time.perf_counter()
        try:
            exec(compile(code, f"{path.name}, code cell {number}", "exec"), names)
        except Exception:
            traceback.print_exc()
            print(f"{path.name}: code cell {number} failed:\n{code}", file=sys.stderr)
            return 1
        print(f"[{time.perf_counter() - began:.1f} s  code cell {number}]", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in HERE.glob("*.ipynb")))
    parser.add_argument("--out", type=Path, default=HERE, help="where to run: pictures/ and runs/ appear there")
    options = parser.parse_args()
    paths = [(HERE / f"{name}.ipynb").resolve() for name in options.names]
    os.chdir(options.out)
    if len(paths) == 1:
        return execute(paths[0])
    failed = []
    for path in paths:  # each in a process of its own, since notebooks register parts
        began = time.perf_counter()
        if subprocess.run([sys.executable, __file__, path.stem, "--out", "."]).returncode:
            failed.append(path.stem)
        print(f"{path.stem}: {time.perf_counter() - began:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all ran")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
