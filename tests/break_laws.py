"""Breaks the code in one place at a time and runs the laws against it: each break must make a test fail.

    python tests/break_laws.py [SOURCE]       SOURCE: the folder that holds the package (default: src)

A test that already fails on the unbroken code catches nothing. Exits 1 if a break survives, or no longer applies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from breaks import BREAKS

ROOT = Path(__file__).resolve().parent.parent


def failures(source: Path, tests: str) -> set[str]:
    """The tests that fail against the package in ``source``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=no", "--color=no", "-o", "pythonpath="]
    command += [str(ROOT / "tests" / name) for name in tests.split()]
    settings = {"PYTHONPATH": str(source), "HYPOTHESIS_PROFILE": "unshrunk", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=900)
    if f"regard from {source / 'regard'}" not in done.stdout or done.returncode not in (0, 1):
        sys.exit(f"the tests did not run against {source}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE))


def main() -> int:
    given = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "src").resolve() / "regard"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder).resolve()
        shutil.copytree(given, source / "regard", ignore=shutil.ignore_patterns("__pycache__"))
        already = failures(source, " ".join(sorted({name for broken in BREAKS for name in broken.tests.split()})))
        for test in sorted(already):
            print(f"fails before anything is broken, so catches nothing: {test}")
        survivors = 0
        for broken in BREAKS:
            path = source / "regard" / broken.file
            text = path.read_text()
            if text.count(broken.old) != 1:
                caught, shown = set(), f"DOES NOT APPLY: {broken.old!r} occurs {text.count(broken.old)} times"
            else:
                path.write_text(text.replace(broken.old, broken.new))
                caught = failures(source, broken.tests) - already
                path.write_text(text)
                shown = ", ".join(sorted({re.sub(r"\[.*", "", test.split("::")[1]) for test in caught})) or "SURVIVED"
            survivors += not caught
            print(f"{broken.name:<72} -> {shown}", flush=True)
    print(f"{len(BREAKS) - survivors} of {len(BREAKS)} breaks were caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
