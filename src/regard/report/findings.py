"""The doctor's findings as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


def findings(found: Sequence[dict[str, Any]]) -> str:
    """A card for each record of findings.jsonl; nothing where there is none."""
    return "".join(_card(record) for record in found)


def _card(record: dict[str, Any]) -> str:
    said = {name: escape(str(record.get(name) or "")) for name in ("what", "where", "evidence", "cause", "change")}
    since, step = record.get("since"), record.get("step")
    when = f"step {since:,}" if isinstance(since, int) else ""
    if isinstance(since, int) and isinstance(step, int) and step > since:
        when = f"steps {since:,} to {step:,}"
    place = f" in <code>{said['where']}</code>" if said["where"] else ""
    return (
        f'<article><h3>{said["what"].capitalize()}{place}</h3><p class="about">{when}: {said["evidence"]}.</p>'
        f'<p>Probably {said["cause"]}.</p><p class="try">Try:<code>{said["change"]}</code></p></article>'
    )
