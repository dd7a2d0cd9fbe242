"""Claims about a model, their registry, and the certificate that collects their results.

A claim is one function. The files in ``claims/`` are imported on first use; a file outside of the package registers
its own claims with the same decorator:

    @claim("bounded", "no logit exceeds 100 in absolute value")
    def bounded(model: ModelUnderTest) -> ClaimResult:
        largest = float(model(model.tokens(2)).detach().abs().max())
        return holds(f"{largest:.3g} at most") if largest <= 100 else fails(f"a logit is {largest:.3g}")
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal, NamedTuple

from regard.config.parts import catalog
from regard.prove.model_under_test import ModelUnderTest


class ClaimResult(NamedTuple):
    """The verdict on one claim, with its evidence. ``certify`` sets ``claim`` and ``statement``."""

    verdict: Literal["holds", "fails", "not applicable"]
    evidence: str
    claim: str = ""
    statement: str = ""


def holds(evidence: str) -> ClaimResult:
    return ClaimResult("holds", evidence)


def fails(evidence: str) -> ClaimResult:
    return ClaimResult("fails", evidence)


def not_applicable(reason: str) -> ClaimResult:
    """The claim cannot be tested on this model, or a module declares that it does not keep it."""
    return ClaimResult("not applicable", reason)


class ClaimFails(Exception):
    """Ends the test of a claim with the evidence that it fails, from however deep."""


Test = Callable[[ModelUnderTest], ClaimResult]


class Claim(NamedTuple):
    """A registered claim."""

    name: str
    statement: str
    test: Test
    order: int  # its place in the table
    reorders_sums: bool  # compares sums taken in another order, where a discontinuous module may select differently


_registered: dict[str, Claim] = {}


def claim(name: str, statement: str, *, order: int = 1000, reorders_sums: bool = False) -> Callable[[Test], Test]:
    """Register the decorated function as the test of a claim. By default it comes last in the table."""

    def register(test: Test) -> Test:
        known = _registered.get(name)
        if known is not None and known.test.__module__ != test.__module__:
            raise ValueError(f"the claim {name!r} is registered by {known.test.__module__}; choose another name")
        _registered[name] = Claim(name, statement, test, order, reorders_sums)
        return test

    return register


def all_claims() -> dict[str, Claim]:
    """Every registered claim by name, in the order of the table."""
    package = import_module("regard.prove.claims")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return {one.name: one for one in sorted(_registered.values(), key=lambda one: one.order)}


catalog("claim", lambda: {name: claim.test for name, claim in all_claims().items()})


class Certificate(NamedTuple):
    """The results of all tested claims.

    >>> Certificate((holds("0 apart")._replace(claim="future"), fails("0.3 apart")._replace(claim="step"))).failed
    ['step']
    """

    results: tuple[ClaimResult, ...]
    about: str = ""  # what was tested, if it is not the model as given

    @property
    def failed(self) -> list[str]:
        """The names of the claims that fail."""
        return [result.claim for result in self.results if result.verdict == "fails"]

    @property
    def sound(self) -> bool:
        return not self.failed

    def of(self, claim: str) -> ClaimResult:
        """The result of one claim."""
        return next(result for result in self.results if result.claim == claim)

    def plain(self) -> dict[str, object]:
        """The certificate as data for JSON."""
        return {"about": self.about, "sound": self.sound, "claims": [result._asdict() for result in self.results]}

    def __str__(self) -> str:
        width = max((len(result.claim) for result in self.results), default=0)
        lines = [f"{result.claim:{width}}  {result.verdict:14}  {result.evidence}" for result in self.results]
        return "\n".join([self.about, *lines] if self.about else lines)
