"""No real token's row is fully masked, and nothing is NaN: neither a logit nor a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.attention import Packed, Padded, Range
from regard.attention.slots import AnySlots, make_pairs, valid
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds

SAYS = "no logit of a real token is NaN or infinite"


def judge(subject: Subject) -> Verdict:
    asked = 0
    for case, logits, real in _answers(subject):
        asked += 1
        wrong = (~logits.isfinite()).any(-1) & real
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            return fails(f"{case}: row {row}, place {place} is {_kind(logits[row, place])}")
        if subject.module is not None and logits.requires_grad and (name := _bad_gradient(subject, logits, real)):
            return fails(f"{case}: the gradient of {name} is not finite")
    blind = _blind(subject)
    if blind:
        return fails(blind)
    return holds(f"every logit and gradient of {asked} batches, with and without padding; every real token sees one")


def _answers(subject: Subject) -> Iterator[tuple[str, Tensor, Tensor]]:
    n = subject.length
    for length in sorted({1, 2, n, subject.long}):
        tokens = subject.tokens(3, length)
        yield f"rows of {length} tokens", subject(tokens), torch.ones_like(tokens, dtype=torch.bool)
    same = torch.zeros_like(subject.tokens(2))
    yield "rows of one and the same token", subject(same), torch.ones_like(same, dtype=torch.bool)
    if subject.pads:
        tokens = subject.tokens(4)
        lengths = torch.tensor([1, n, n // 2, 3], device=tokens.device)
        real = torch.arange(n, device=tokens.device) < lengths[:, None]
        yield f"padded rows of {lengths.tolist()} tokens", subject.padded(tokens, lengths), real
    if subject.takes_slots and not subject.named("steppable"):
        slots = Packed.of([[2, n - 2], [n // 2]], n, device=subject.device)
        yield "packed rows", subject.model(subject.tokens(2), slots), slots.segment >= 0


def _kind(logits: Tensor) -> str:
    return "NaN" if logits.isnan().any() else "infinite"


def _bad_gradient(subject: Subject, logits: Tensor, real: Tensor) -> str:
    assert subject.module is not None
    weights = [(name, one) for name, one in subject.module.named_parameters() if one.requires_grad]
    if not weights:
        return ""
    aim = torch.where(real[..., None], logits, 0.0).log_softmax(-1)[..., 0].mul(real).sum()
    gradients = torch.autograd.grad(aim, [one for _, one in weights], allow_unused=True)
    found = zip(weights, gradients, strict=True)
    return next((name for (name, _), g in found if g is not None and not bool(g.isfinite().all())), "")


@torch.no_grad()
def _blind(subject: Subject) -> str:
    """The first real token that a layer's mask lets see nothing: zero by law, and so never seen as NaN."""
    masks: list[Any] = list(getattr(subject.model, "masks", ()))
    n = subject.length
    kinds: list[tuple[str, AnySlots]] = [("plain", Range(n)), ("long", Range(subject.long))]
    kinds.append(("padded", Padded(torch.tensor([1, n, n // 2], device=subject.device), n)))
    kinds.append(("packed", Packed.of([[2, n - 2]], n, device=subject.device)))
    for number, mask in enumerate(masks):
        for told, slots in kinds:
            pairs = make_pairs(slots, slots, heads=1, device=subject.device, batch=slots.rows)
            seen = (mask.allows(pairs) & valid(pairs)).any(-1)[:, 0]  # [B, N]
            real = torch.as_tensor(pairs.q.segment >= 0)[:, 0, :, 0].expand_as(seen)
            if (real & ~seen).any():
                row, place = (real & ~seen).nonzero()[0].tolist()
                return f"mask {number} ({mask}) lets row {row}, place {place} of {told} rows see nothing at all"
    return ""
