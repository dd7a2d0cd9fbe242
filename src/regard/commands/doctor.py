"""`regard doctor`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

from regard.commands.common import RUNS, RunName, open_run
from regard.commands.waiting import waiting


def doctor(run: RunName = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """Find the faults of a training run: what, where, why, and the option that fixes it.

    `regard train --doctor` watches a training while it runs. This command shows what it found, reads the run's records,
    and examines its newest checkpoint and its data. Exit code 1: something was found.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print the findings as JSON.
    """
    opened = open_run(run, runs)
    from regard.doctor import examine

    with waiting("examining"):
        findings, notes = examine(opened)
    if json:
        records = [finding.record() for finding in findings]
        print(jsonlib.dumps({"run": str(opened.path), "findings": records, "left_out": notes}))
        return int(bool(findings))
    for finding in findings:
        first, last = finding.since, finding.step
        when = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
        print(f"{finding.title} ({finding.kind}, {when})")
        print(f"    evidence        {finding.evidence}")
        print(f"    probable cause  {finding.cause}")
        print(f"    try             {finding.change}")
    for note in notes:
        print(f"not examined: {note}")
    if not findings:
        print(f"{opened.path}: no faults found")
    return int(bool(findings))
