"""Every attention backend that runs here equals the reference, forward and backward."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention import BACKENDS, Packed, Padded, Softmax
from regard.attention.backends.choose import BackendRefused
from regard.models.base import Model
from regard.prove import ClaimResult, ModelUnderTest, claim, holds, not_applicable
from regard.prove.comparison import LargestGap, gradients
from regard.prove.model_under_test import training_mode

BUILT = "as built"
Run = Callable[[], Tensor]


@claim("backends", "every backend equals the reference, forward and backward", order=80)
def backends(subject: ModelUnderTest) -> ClaimResult:
    model = subject.model
    layers = [] if model is None else [part for part in model.modules() if isinstance(part, Softmax)]
    if model is None or not layers:
        return _variants(subject)
    largest, agreeing, refusing = LargestGap(), [], []
    reference: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
    for name in ("reference", BUILT, *(name for name in BACKENDS if name != "reference")):
        if name == "flex" and subject.device.type == "cpu":
            refusing.append("flex (compiles for too long on a CPU)")
            continue
        served = 0
        with training_mode(model, False):  # puts the layers' own backends back
            for layer in layers:
                layer.backend = layer.backend if name == BUILT else name
            for case, run in _cases(subject):
                try:
                    logits, found = _results(model, run)
                except BackendRefused:
                    continue
                served += 1
                expected = reference.setdefault(case, (logits, found))
                largest.add(logits, expected[0], f"{name}, {case}, forward")
                largest.add_gradients(found, expected[1], f"{name}, {case}: the gradient")
        if name != "reference":
            (agreeing if served else refusing).append(name)
    refused = f"; refused here: {', '.join(refusing)}" if refusing else ""
    return holds(f"{', '.join(agreeing)} agree to {largest.size:.1g}{refused}")


@torch.no_grad()
def _variants(subject: ModelUnderTest) -> ClaimResult:
    """The other code paths of a model of another library."""
    largest = LargestGap()
    for length in sorted({1, 2, subject.length}) if subject.variants else ():
        tokens = subject.tokens(2, length)
        for name, forward in subject.variants.items():
            largest.add(forward(tokens), subject(tokens), f"{name}, rows of {length} tokens")
    no_choice = not_applicable("no module has a choice of backends")
    return largest.result(", ".join(subject.variants)) if subject.variants else no_choice


def _cases(subject: ModelUnderTest) -> list[tuple[str, Run]]:
    model, n, tokens = subject.model, subject.length, subject.tokens(2)
    assert model is not None
    cases: list[tuple[str, Run]] = [("plain rows", lambda: subject(tokens))]
    cases.append(("one token", lambda: subject(tokens[:, :1])))
    if subject.takes_slots and not subject.not_steppable:
        lengths = torch.tensor([n // 2, n], device=tokens.device)
        real = (torch.arange(n, device=tokens.device) < lengths[:, None])[..., None]
        cases.append(("padded rows", lambda: subject.outputs(tokens, Padded(lengths, n)) * real))
        packed = Packed.of([[3, n - 3], [n // 2, n - n // 2]], n, device=tokens.device)
        cases.append(("packed rows", lambda: subject.outputs(tokens, packed)))
    if subject.long > n:
        long = subject.tokens(1, subject.long)
        cases.append(("a long row", lambda: subject(long)))
    if subject.stepper is not None and not subject.not_steppable:
        cases.append(("decoding", torch.no_grad()(lambda: subject.decode(tokens, [n - 4, 3, 1]))))
    return cases


def _results(model: Model, run: Run) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the gradients of a weighted sum of them."""
    logits = run()
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).to(logits)
    return logits.detach(), gradients(model, (logits * direction).sum())
