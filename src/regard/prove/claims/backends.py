"""Every attention backend that runs here equals the reference, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.attention import BACKENDS, Packed, Padded, Softmax
from regard.attention.backends.choose import BackendRefused
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.comparison import LargestGap

GRADIENTS = 1e-3  # of the largest: a gradient is a sum over every token
BUILT = "as built"
Run = Callable[[], Tensor]


@claim("backends", "every backend equals the reference, forward and backward", order=80)
def backends(subject: ModelUnderTest) -> ClaimResult:
    layers = [] if subject.model is None else [part for part in subject.model.modules() if isinstance(part, Softmax)]
    if not layers:
        return not_applicable("no module has a choice of backends")
    largest, agreeing, refusing = LargestGap(), [BUILT], []
    with _backend(layers, "reference"):
        reference = {case: _results(subject, run) for case, run in _cases(subject)}
    for name in (BUILT, *(name for name in BACKENDS if name != "reference")):
        if name == "flex" and subject.device.type == "cpu":
            refusing.append("flex (compiles for too long on a CPU)")
            continue
        served = 0
        with _backend(layers, None if name == BUILT else name):
            for case, run in _cases(subject):
                try:
                    results = _results(subject, run)
                except BackendRefused:
                    continue
                served += 1
                _compare(largest, f"{name}, {case}", results, reference[case])
        if not served:
            refusing.append(name)
        elif name != BUILT:
            agreeing.append(name)
    if largest.description:
        return fails(largest.description)
    refused = f"; refused here: {', '.join(refusing)}" if refusing else ""
    return holds(f"{', '.join(agreeing)} agree to {largest.size:.1g}{refused}")


@contextmanager
def _backend(layers: Sequence[Softmax], backend: str | None) -> Iterator[None]:
    """Set the backend of all layers; None keeps their own."""
    own = [layer.backend for layer in layers]
    try:
        for layer in layers:
            layer.backend = layer.backend if backend is None else backend
        yield
    finally:
        for layer, was in zip(layers, own, strict=True):
            layer.backend = was


def _cases(subject: ModelUnderTest) -> list[tuple[str, Run]]:
    model, n, tokens = subject.model, subject.length, subject.tokens(2)
    assert model is not None
    cases: list[tuple[str, Run]] = [
        ("plain rows", lambda: subject(tokens)),
        ("one token", lambda: subject(tokens[:, :1])),
    ]
    if subject.takes_slots and not subject.not_steppable:
        lengths = torch.tensor([n // 2, n], device=tokens.device)
        real = (torch.arange(n, device=tokens.device) < lengths[:, None])[..., None]
        cases.append(("padded rows", lambda: model(tokens, Padded(lengths, n)) * real))
        packed = Packed.of([[3, n - 3], [n // 2, n - n // 2]], n, device=tokens.device)
        cases.append(("packed rows", lambda: model(tokens, packed)))
    if subject.long > n:
        long = subject.tokens(1, subject.long)
        cases.append(("a long row", lambda: subject(long)))
    if subject.stepper is not None and not subject.not_steppable:
        cases.append(("decoding", torch.no_grad()(lambda: subject.decode(tokens, [n - 4, 3, 1]))))
    return cases


def _results(subject: ModelUnderTest, run: Run) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the gradients of a weighted sum of them."""
    logits = run()
    if not logits.requires_grad:
        return logits, {}
    assert subject.module is not None
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).to(logits)
    names, weights = zip(*((n, w) for n, w in subject.module.named_parameters() if w.requires_grad), strict=True)
    gradients = torch.autograd.grad((logits * direction).sum(), weights, allow_unused=True)
    return logits.detach(), {n: g for n, g in zip(names, gradients, strict=True) if g is not None}


def _compare(largest: LargestGap, case: str, results: tuple[Tensor, dict], reference: tuple[Tensor, dict]) -> None:
    largest.add(results[0], reference[0], f"{case}, forward")
    scale = max((float(g.abs().max()) for g in reference[1].values()), default=1.0) or 1.0
    for name, gradient in results[1].items():
        other = reference[1].get(name, torch.zeros_like(gradient))
        one, two = ((g / scale).reshape(1, len(g) if g.ndim > 1 else 1, -1) for g in (gradient, other))
        largest.add(one, two, f"{case}, gradient of {name}", GRADIENTS)
