"""A finding: what is wrong, where, the evidence, the probable cause, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One fault of a training run."""

    kind: str  # that of the check that found it
    where: str  # a module's name, a batch's number, a key of the experiment
    evidence: str  # the numbers
    cause: str  # probable cause
    change: str  # options of `regard train` that fix it, or what to look at in one's own code
    step: int = 0  # when it was last seen
    since: int = 0  # when it was first seen
    what: str = ""  # the kind in words

    @property
    def key(self) -> tuple[str, str]:
        """Findings with the same kind and place are the same finding."""
        return self.kind, self.where

    @property
    def title(self) -> str:
        """What is wrong and where."""
        return f"{self.what} in {self.where}" if self.where else self.what

    def line(self) -> str:
        """One line for a terminal."""
        return f"doctor, step {self.step:,}: {self.title} ({self.evidence}); {self.cause}; try: {self.change}"

    def record(self) -> dict[str, Any]:
        """The record for findings.jsonl."""
        return asdict(self)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Finding | None:
        """The finding of a record; None if the record is no finding."""
        values = {field.name: record.get(field.name) for field in fields(cls)}
        types = {field.name: int if field.type == "int" else str for field in fields(cls)}
        return cls(**values) if all(isinstance(values[name], kind) for name, kind in types.items()) else None  # type: ignore[arg-type]
