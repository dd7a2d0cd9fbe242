"""What a judge says: of one claim a verdict with its evidence, of a model a certificate."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

HOLDS, FAILS, UNASKED = "holds", "fails", "not asked"


class Verdict(NamedTuple):
    """One claim, whether it holds, and what shows it. ``claim`` is filled in by the court."""

    verdict: Literal["holds", "fails", "not asked"]
    evidence: str
    claim: str = ""
    says: str = ""


def holds(evidence: str) -> Verdict:
    return Verdict(HOLDS, evidence)


def fails(evidence: str) -> Verdict:
    return Verdict(FAILS, evidence)


def unasked(reason: str) -> Verdict:
    """The claim cannot be judged here, or a part declares that it does not make it."""
    return Verdict(UNASKED, reason)


class Certificate(NamedTuple):
    """All verdicts about one model.

    >>> Certificate((holds("seen")._replace(claim="future"), fails("0.3 apart")._replace(claim="step"))).failed
    ['step']
    """

    verdicts: tuple[Verdict, ...]
    about: str = ""  # what was judged, where it is not the model as it came

    @property
    def failed(self) -> list[str]:
        """The names of the claims that do not hold."""
        return [one.claim for one in self.verdicts if one.verdict == FAILS]

    @property
    def sound(self) -> bool:
        return not self.failed

    def of(self, claim: str) -> Verdict:
        """The verdict about one claim."""
        return next(one for one in self.verdicts if one.claim == claim)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        told = [
            {"claim": one.claim, "says": one.says, "verdict": one.verdict, "evidence": one.evidence}
            for one in self.verdicts
        ]
        return {"about": self.about, "sound": self.sound, "claims": told}

    def __str__(self) -> str:
        wide = max((len(one.claim) for one in self.verdicts), default=0)
        lines = [f"{one.claim:{wide}}  {one.verdict:9}  {one.evidence}" for one in self.verdicts]
        return "\n".join([self.about, *lines] if self.about else lines)
