"""`regard doctor`."""

from __future__ import annotations

import json

from regard.commands.common import RunOptions
from regard.commands.waiting import waiting


def doctor(options: RunOptions) -> int:
    """Diagnose a training: each fault with its place, evidence, probable cause and the option that fixes it.

    `regard train --doctor` watches a training while it runs; this command prints its findings, reads the run's records,
    and examines its newest checkpoint and its data. The exit code is 1 if there are findings.
    """
    opened = options.open()
    from regard.doctor import examine

    with waiting("examining"):
        findings, notes = examine(opened)
    if options.json:
        records = [finding.record() for finding in findings]
        print(json.dumps({"run": str(opened.path), "findings": records, "left_out": notes}))
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
