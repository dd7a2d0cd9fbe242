"""A finding: what is wrong, where, what shows it, why it probably is so, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

#: Of each kind, what it says in words.
KINDS = {
    "exploding_gradients": "gradients explode",
    "vanishing_gradients": "gradients vanish",
    "attention_collapse": "attention has collapsed",
    "uniform_heads": "heads look everywhere alike",
    "loss_spike": "the loss jumped",
    "non_finite": "a number is not finite",
    "rate_too_high": "the learning rate is too high",
    "rate_too_low": "the learning rate is too low",
    "dead_units": "units are dead",
    "unused_expert": "an expert gets no tokens",
    "overloaded_expert": "an expert gets nearly all tokens",
    "mask_fault": "a mask is missing or wrong",
    "position_fault": "positions have no effect",
    "label_leak": "the answer is in the question",
    "duplicated_data": "data comes more than once",
    "overfitting": "the text is learned by heart",
    "token_range": "a token is outside the vocabulary",
    "starvation": "training waits for data",
    "memory": "memory is almost full",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: str  # one of KINDS
    where: str  # a module's path, a batch's number, a key of the experiment
    evidence: str  # the numbers
    cause: str  # what is probably behind it
    change: str  # options of `regard train` that mend it, or what to look at in one's own code
    step: int = 0  # at which it was seen last
    since: int = 0  # at which it was first seen

    @property
    def what(self) -> str:
        """The kind in words."""
        return KINDS[self.kind]

    @property
    def place(self) -> tuple[str, str]:
        """What makes it another finding: there is one for each kind and place."""
        return self.kind, self.where

    def line(self) -> str:
        """In one line, for a terminal."""
        where = f" in {self.where}" if self.where else ""
        return f"doctor, step {self.step:,}: {self.what}{where} ({self.evidence}); {self.cause}; try: {self.change}"

    def record(self) -> dict[str, Any]:
        """For findings.jsonl, and for a program."""
        return {"step": self.step, "kind": self.kind, "what": self.what, **asdict(self)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Finding | None:
        """What `record` was made of; None where it was not made by this."""
        given: dict[str, Any] = {field.name: record.get(field.name) for field in fields(cls)}
        texts = all(isinstance(given[name], str) for name in ("kind", "where", "evidence", "cause", "change"))
        known = texts and given["kind"] in KINDS and all(isinstance(given[name], int) for name in ("step", "since"))
        return cls(**given) if known else None
