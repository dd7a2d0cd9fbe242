"""`regard doctor`."""

from __future__ import annotations

import json

from regard.commands.common import RunOptions
from regard.commands.waiting import waiting


def doctor(options: RunOptions) -> int:
    """Diagnose a training: each problem with its place, its evidence, its cause and the option that fixes it.

    `regard train --doctor` watches a training while it runs; this command prints its findings, reads the run's records,
    and examines its newest checkpoint and its text. The exit code is 1 if there are findings.
    """
    opened = options.open()
    from regard.doctor import examine

    with waiting("examining"):
        found, notes = examine(opened)
    if options.json:
        told = [finding.record() for finding in found]
        print(json.dumps({"run": str(opened.path), "findings": told, "left_out": notes}))
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
