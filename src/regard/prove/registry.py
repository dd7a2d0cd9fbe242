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
from regard.prove.model_under_test import SEED, Effort, ModelUnderTest

#: What a model may raise when a claim is tested on it; each of them is a failure of the claim.
FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


class Case(NamedTuple):
    """A case that a claim is tested on. What the pieces are depends on the claim; together they are a row."""

    format: str  # the number format
    rows: int
    pieces: tuple[int, ...]  # tokens
    seed: int = SEED  # of the tokens

    @property
    def length(self) -> int:
        """The tokens of a row."""
        return sum(self.pieces)

    def __str__(self) -> str:
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''} of {self.length} token{'s' if self.length > 1 else ''}"
        pieces = f" as {' + '.join(map(str, self.pieces))}" if len(self.pieces) > 1 else ""
        return f"{self.format}, {rows}{pieces}, seed {self.seed}"


class ClaimResult(NamedTuple):
    """The verdict on one claim, with its evidence. ``certify`` sets ``claim`` and ``statement``."""

    verdict: Literal["holds", "fails", "not applicable"]
    evidence: str
    claim: str = ""
    statement: str = ""
    case: Case | None = None  # the smallest case that fails


def holds(evidence: str) -> ClaimResult:
    return ClaimResult("holds", evidence)


def fails(evidence: str) -> ClaimResult:
    return ClaimResult("fails", evidence)


def not_applicable(reason: str) -> ClaimResult:
    """The claim cannot be tested on this model, or a module declares that it does not keep it."""
    return ClaimResult("not applicable", reason)


class ClaimFails(Exception):
    """Ends the test of a claim with the evidence that it fails, from however deep."""


class NotFinite(ClaimFails):
    """The claim fails with a value that is NaN or infinite."""


def first_line(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    message = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {message}"


Test = Callable[[ModelUnderTest], ClaimResult]


class ClaimSweep(NamedTuple):
    """The test of a claim on one case."""

    test: Callable[[ModelUnderTest, Case], None]  # raises ``ClaimFails``
    pieces: int = 1  # pieces of a case; 0: any number
    lengths: bool = True  # rows of many lengths are tested; number formats always are
    rows: bool = True  # batches of many sizes are tested


class Claim(NamedTuple):
    """A registered claim."""

    name: str
    statement: str
    test: Test
    order: int  # its place in the table
    reorders_sums: bool  # compares sums taken in another order, where a discontinuous module may select differently
    sweep: ClaimSweep | None  # the same claim on many cases


_registered: dict[str, Claim] = {}


def claim(
    name: str, statement: str, *, order: int = 1000, reorders_sums: bool = False, sweep: ClaimSweep | None = None
) -> Callable[[Test], Test]:
    """Register the decorated function as the test of a claim. By default it comes last in the table."""

    def register(test: Test) -> Test:
        known = _registered.get(name)
        if known is not None and known.test.__module__ != test.__module__:
            raise ValueError(f"the claim {name!r} is registered by {known.test.__module__}; choose another name")
        _registered[name] = Claim(name, statement, test, order, reorders_sums, sweep)
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
    effort: Effort = "quick"
    seed: int = 0

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
        cases = [result.case._asdict() if result.case else None for result in self.results]
        claims = [result._asdict() | {"case": case} for result, case in zip(self.results, cases, strict=True)]
        settings = {"effort": self.effort, "seed": self.seed}
        return {"about": self.about, "sound": self.sound, **settings, "claims": claims}

    def __str__(self) -> str:
        width = max((len(result.claim) for result in self.results), default=0)
        lines = [f"{result.claim:{width}}  {result.verdict:14}  {result.evidence}" for result in self.results]
        return "\n".join([self.about, *lines] if self.about else lines)
