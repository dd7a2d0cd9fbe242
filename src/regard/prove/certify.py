"""The court: every claim is judged, and nothing of the model is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.prove.subject import Forward, Subject, undisturbed
from regard.prove.verdict import FAILS, HOLDS, Certificate, Verdict, fails, unasked

#: In the order of the table; each is a module of ``claims``.
CLAIMS = ("future", "padding", "batching", "packing", "step", "finite", "order", "backends", "tokenizer", "loss")
CLAIMS += ("accumulation", "overlap", "checkpoint", "export")
ROUNDED = ("padding", "batching", "packing", "step")  # the same sums in another order


def certify(
    forward: Forward | None = None,
    *,
    model: Any = None,
    vocabulary: int | None = None,
    length: int | None = None,
    padded: Callable[[Tensor, Tensor], Tensor] | None = None,
    stepper: Any = None,
    ways: Mapping[str, Forward] | None = None,
    causal: bool = True,
    positions: bool | None = None,
    tokenizer: Any = None,
    task: Any = None,
    data: Any = None,
    claims: Sequence[str] | None = None,
    about: str = "",
    say: Callable[[str], object] = str,
) -> Certificate:
    """Judge a model of this library (``model``), or whatever turns tokens [B, N] into logits [B, N, V] (``forward``).

    ``padded`` gives the logits of rows of which only the first ``lengths`` tokens are real; ``stepper`` has ``start``
    and ``step`` as models here do; ``ways`` are further paths to the same logits, by name. ``causal``: no token sees a
    later one. ``positions``: whether the order of tokens is meant to matter (none: as the model's config says). With
    ``tokenizer``, ``task`` and ``data`` they are judged too. ``claims`` names those to judge; by default all. ``say``
    is told which one is next.

    >>> import torch
    >>> ahead = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
    >>> certify(lambda tokens: ahead(tokens.roll(-1, 1)), vocabulary=11, length=6).failed[0]
    'future'
    """
    if (forward is None) == (model is None):
        raise UserError("give certify either a model of this library or the forward pass of another, not both")
    vocabulary = vocabulary if vocabulary is not None else getattr(getattr(model, "config", None), "vocabulary", None)
    if vocabulary is None:
        raise UserError("certify needs to know how many tokens there are; give vocabulary=...")
    if length is None:
        length = int(min(24, getattr(getattr(model, "config", None), "context", 24)))
    if length < 4 or vocabulary < 2:
        raise UserError(
            f"{length} tokens of {vocabulary} kinds are too few to see anything; give 4 or more of 2 or more"
        )
    subject = Subject(
        forward if forward is not None else model,
        vocabulary,
        length,
        model=model,
        behind=padded,
        stepper=stepper if stepper is not None else model if hasattr(model, "step") else None,
        ways=dict(ways or {}),
        causal=causal,
        positions=positions,
        tokenizer=tokenizer,
        task=task,
        data=data,
    )
    unknown = [name for name in claims or () if name not in CLAIMS]
    if unknown:
        raise UserError(f"there is no claim {unknown[0]!r}; choose from {', '.join(CLAIMS)}")
    wanted, found = [name for name in CLAIMS if claims is None or name in claims], []
    for number, name in enumerate(wanted, 1):
        say(f"claim {number} of {len(wanted)}: {name}")
        found.append(judged(subject, name))
    return Certificate(tuple(found), about)


def judged(subject: Subject, name: str) -> Verdict:
    """The verdict about one claim.

    Where a part picks the best few of something, rounding may pick another: such a model is asked again in float64.
    """
    found = _asked(subject, name)
    choosing = subject.choosing() if found.verdict == FAILS and name in ROUNDED else []
    if not choosing:
        return found
    model = copy.deepcopy(subject.model).double()
    again = _asked(replace(subject, model=model, forward=model, stepper=model), name)
    note = f" in float64; in float32 {choosing[0]} may choose otherwise by rounding"
    return again._replace(evidence=again.evidence + note) if again.verdict == HOLDS else found


def _asked(subject: Subject, name: str) -> Verdict:
    """A model that breaks down under a question does not keep its claim."""
    claim = import_module(f"regard.prove.claims.{name}")
    try:
        with undisturbed(subject.module):
            torch.manual_seed(1)
            found = claim.judge(subject)
    except UserError as refusal:  # a part says that it does not do this
        found = unasked(str(refusal))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        told = (str(error).strip() or "no message").splitlines()[0]
        found = fails(f"it broke down: {type(error).__name__}: {told}")
    return found._replace(claim=name, says=claim.SAYS)
