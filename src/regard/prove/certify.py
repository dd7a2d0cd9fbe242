"""Test every claim about a model. The model is left as it was."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from regard.errors import UserError
from regard.models.base import Model
from regard.prove.model_under_test import Effort, Forward, ModelUnderTest, preserved
from regard.prove.registry import (
    FAILURES,
    Certificate,
    Claim,
    ClaimFails,
    ClaimResult,
    all_claims,
    fails,
    first_line,
    not_applicable,
)
from regard.prove.rounding import FormatProbes
from regard.prove.sweep import run_sweep


def certify(
    model: ModelUnderTest | Model | Forward,
    *,
    vocabulary: int = 0,
    length: int = 0,
    causal: bool = True,
    claims: Sequence[str] | None = None,
    effort: Effort = "quick",
    seed: int = 0,
    progress: Callable[[str], object] = str,
) -> Certificate:
    """Test claims about a model of this library, or about any function from tokens [B, N] to logits [B, N, V].

    ``vocabulary`` is the number of token ids and ``length`` the length of the test sequences; a model of this library
    has its own. ``causal``: no logit may depend on a later token. Pass a ``ModelUnderTest`` to test padding, decoding,
    data, a task or a tokenizer as well. ``claims`` names the claims to test (default: all). ``effort`` ("quick" or
    "full") is how many cases each claim is tested on; ``seed`` draws them. ``progress`` is called with a line of text
    before each claim.

    >>> import torch
    >>> ahead = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
    >>> certify(lambda tokens: ahead(tokens.roll(-1, 1)), vocabulary=11, length=6).failed[0]
    'future'
    """
    subject = model
    if not isinstance(subject, ModelUnderTest):
        subject = ModelUnderTest(subject, vocabulary=vocabulary, length=length, causal=causal)
    subject = replace(subject, effort=effort, seed=seed)
    known = all_claims()
    unknown = [name for name in claims or () if name not in known]
    if unknown:
        raise UserError(f"there is no claim {unknown[0]!r}; choose from {', '.join(known)}")
    selected = [claim for name, claim in known.items() if claims is None or name in claims]
    probes = FormatProbes(subject, any(claim.sweep for claim in selected))
    try:
        results = []
        for number, claim in enumerate(selected, 1):
            progress(f"claim {number} of {len(selected)}: {claim.name}")
            results.append(_result(subject, claim))
        for number, claim in enumerate(selected):  # last, so that the probes have ended
            progress(f"cases of claim {number + 1} of {len(selected)}: {claim.name}")
            results[number] = _swept(subject, claim, results[number], probes)
    finally:
        probes.close()
    return Certificate(tuple(results), subject.about, effort, seed)


def _swept(subject: ModelUnderTest, claim: Claim, result: ClaimResult, probes: FormatProbes) -> ClaimResult:
    """The result after the sweep of a claim; if it failed before, the sweep looks for a smallest case."""
    if claim.sweep is None or result.verdict == "not applicable":
        return result
    with preserved(subject.module):
        swept = run_sweep(subject, claim.sweep, probes)
    if result.verdict == "fails":
        case = swept.failing
        found = f"; the smallest failing case: {case}" if case else ""
        return result._replace(evidence=result.evidence + found, case=case)
    if swept.failing is not None:
        return result._replace(verdict="fails", evidence=swept.evidence, case=swept.failing)
    return result._replace(evidence=f"{result.evidence}; {swept.evidence}")


def _result(subject: ModelUnderTest, claim: Claim) -> ClaimResult:
    """The result of one claim.

    Rounding may change what a discontinuous module selects: a model that has one is tested again in float64.
    """
    result = _tested(subject, claim)
    if result.verdict != "fails" or not claim.reorders_sums or not subject.discontinuous or subject.model is None:
        return result
    again = _tested(replace(subject, stepper=None, forward=copy.deepcopy(subject.model).double()), claim)
    note = f" in float64; in float32 rounding may change what {subject.discontinuous[0]} selects"
    return again._replace(evidence=again.evidence + note) if again.verdict == "holds" else result


def _tested(subject: ModelUnderTest, claim: Claim) -> ClaimResult:
    try:
        with preserved(subject.module):
            torch.manual_seed(1)
            result = claim.test(subject)
    except ClaimFails as failure:
        result = fails(str(failure))
    except UserError as refusal:  # a module refuses this use
        result = not_applicable(str(refusal))
    except FAILURES as error:
        result = fails(f"it raised {first_line(error)}")
    return result._replace(claim=claim.name, statement=claim.statement)
