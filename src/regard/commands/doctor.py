"""`regard doctor`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

from regard.commands.common import RUNS, RunName, open_run
from regard.commands.waiting import waiting


def doctor(run: RunName = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """What is wrong with a training: what, where, why, and the option that mends it.

    `regard train --doctor` watches a training while it runs; this tells what it found, reads the run's records, and
    looks into its newest checkpoint and its text. Exit code 1: something was found.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print the findings as JSON.
    """
    opened = open_run(run, runs)
    from regard.doctor import examine

    with waiting("examining"):
        found, notes = examine(opened)
    if json:
        told = [finding.record() for finding in found]
        print(jsonlib.dumps({"run": str(opened.path), "findings": told, "left_out": notes}))
        return int(bool(found))
    for finding in found:
        where = f" in {finding.where}" if finding.where else ""
        when = (
            f"step {finding.since:,}" if finding.since == finding.step else f"steps {finding.since:,}-{finding.step:,}"
        )
        print(f"{finding.what}{where} ({finding.kind}, {when})")
        print(f"    shown by  {finding.evidence}\n    probably  {finding.cause}\n    try       {finding.change}")
    for note in notes:
        print(f"left out: {note}")
    if not found:
        print(f"{opened.path}: nothing is wrong that the doctor knows of")
    return int(bool(found))
