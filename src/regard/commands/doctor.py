"""`regard doctor`."""

from regard.commands.common import RunOptions
from regard.runs.waiting import waiting


def doctor(options: RunOptions) -> int:
    """Diagnose a training: each fault with its place, evidence, probable cause and the option that fixes it.

    `regard train --doctor` watches a training while it runs; this command prints its findings, reads the run's records,
    and examines its newest checkpoint and its data. The exit code is 1 if there are findings.
    """
    run = options.open()
    if run.imported:
        about = "the model was imported, without its training and its data: there is nothing to examine"
        summary = {"run": str(run.path), "findings": [], "left_out": [about], "damaged": run.damaged}
        options.show(summary, f"{run.path}: {about}; `regard prove {run.path}` tests what it computes")
        return 0
    from regard.doctor import examine

    with waiting("examining"):
        findings, notes = examine(run)
    lines = []
    changes: set[str] = set()
    for finding in findings:
        first, last = finding.since, finding.step
        when = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
        lines += [
            f"{finding.title} ({finding.kind}, {when})",
            f"    evidence        {finding.evidence}",
            f"    probable cause  {finding.cause}",
            f"    try             {'the same' if finding.change in changes else finding.change}",
        ]
        changes.add(finding.change)
    lines += [f"not examined: {note}" for note in notes]
    lines += [] if findings else [f"{run.path}: no faults found"]
    records = [finding.record() for finding in findings]
    summary = {"run": str(run.path), "findings": records, "left_out": notes, "damaged": run.damaged}
    options.show(summary, "\n".join(lines))
    return int(bool(findings))
