"""Every backend that is available here agrees with the reference, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.attention import BACKENDS, Mechanism, Packed, Padded
from regard.attention.backends.choose import Refused
from regard.prove.differ import Worst
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "every backend equals the reference, forward and backward"
GRADIENTS = 1e-3  # of the largest: a gradient is a sum over every token
BUILT = "as built"


def judge(subject: Subject) -> Verdict:
    parts = [part for part in subject.module.modules() if _chooses(part)] if subject.module is not None else []
    if subject.model is None or not parts:
        return unasked("no part of it has backends to choose from")
    worst, agreed, left = Worst(), [BUILT], []
    with _on(parts, "reference"):
        truth = {case: _answer(subject, ask) for case, ask in _cases(subject)}
    for name in (BUILT, *(name for name in BACKENDS if name != "reference")):
        if name == "flex" and subject.device.type == "cpu":
            left.append("flex (compiles for too long on a CPU)")
            continue
        served = 0
        with _on(parts, None if name == BUILT else name):
            for case, ask in _cases(subject):
                try:
                    found = _answer(subject, ask)
                except Refused:
                    continue
                served += 1
                _compare(worst, f"{name}, {case}", found, truth[case])
        if not served:
            left.append(name)
        elif name != BUILT:
            agreed.append(name)
    if worst.found:
        return fails(worst.found)
    refused = f"; refused here: {', '.join(left)}" if left else ""
    return holds(f"{', '.join(agreed)} agree to {worst.size:.1g}{refused}")


def _chooses(part: Any) -> bool:
    return isinstance(part, Mechanism) and hasattr(part, "backend")


@contextmanager
def _on(parts: list[Any], backend: str | None) -> Iterator[None]:
    """All parts on one backend for a while; None: on their own."""
    own = [part.backend for part in parts]
    try:
        for part in parts:
            part.backend = part.backend if backend is None else backend
        yield
    finally:
        for part, was in zip(parts, own, strict=True):
            part.backend = was


Ask = Callable[[], Tensor]


def _cases(subject: Subject) -> list[tuple[str, Ask]]:
    n, tokens = subject.length, subject.tokens(2)
    cases: list[tuple[str, Ask]] = [("plain rows", lambda: subject(tokens))]
    cases.append(("one token", lambda: subject(tokens[:, :1])))
    if subject.takes_slots and not subject.named("steppable"):
        lengths = torch.tensor([n // 2, n], device=tokens.device)
        real = (torch.arange(n, device=tokens.device) < lengths[:, None])[..., None]
        cases.append(("padded rows", lambda: subject.model(tokens, Padded(lengths, n)) * real))
        packed = Packed.of([[3, n - 3], [n // 2, n - n // 2]], n, device=tokens.device)
        cases.append(("packed rows", lambda: subject.model(tokens, packed)))
    if subject.long > n:
        long = subject.tokens(1, subject.long)
        cases.append(("a long row", lambda: subject(long)))
    if subject.stepper is not None and not subject.named("steppable"):
        cases.append(("steps", lambda: _stepped(subject, tokens)))
    return cases


@torch.no_grad()
def _stepped(subject: Subject, tokens: Tensor) -> Tensor:
    state, found = subject.start(len(tokens), subject.length), []
    for piece in tokens.split([subject.length - 4, 3, 1], dim=1):
        logits, state = subject.stepper.step(piece, state)
        found.append(logits)
    return torch.cat(found, dim=1)


def _answer(subject: Subject, ask: Ask) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the gradients of a weighted sum of them."""
    logits = ask()
    if not logits.requires_grad:
        return logits, {}
    assert subject.module is not None
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).to(logits)
    names, weights = zip(*((n, w) for n, w in subject.module.named_parameters() if w.requires_grad), strict=True)
    gradients = torch.autograd.grad((logits * direction).sum(), weights, allow_unused=True)
    return logits.detach(), {n: g for n, g in zip(names, gradients, strict=True) if g is not None}


def _compare(worst: Worst, case: str, found: tuple[Tensor, dict], truth: tuple[Tensor, dict]) -> None:
    worst.add(found[0], truth[0], f"{case}, forward")
    largest = max((float(g.abs().max()) for g in truth[1].values()), default=1.0) or 1.0
    for name, gradient in found[1].items():
        other = truth[1].get(name, torch.zeros_like(gradient))
        one, two = ((g / largest).reshape(1, len(g) if g.ndim > 1 else 1, -1) for g in (gradient, other))
        worst.add(one, two, f"{case}, gradient of {name}", GRADIENTS)
