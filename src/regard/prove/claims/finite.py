"""No logit and no gradient is NaN or infinite, and every real token may attend to at least one token.

A logit of -inf forbids a token, which is no fault as long as another token is allowed.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.attention import Mask, Packed, Padded, Range
from regard.attention.slots import AnySlots, make_pairs, valid
from regard.prove import Case, ClaimFails, ClaimResult, ClaimSweep, ModelUnderTest, claim, holds
from regard.prove.comparison import gradients
from regard.prove.registry import NotFinite
from regard.prove.rounding import FORMATS, REFERENCE, number_format


def finite_case(subject: ModelUnderTest, case: Case) -> None:
    """The logits of plain rows in a number format."""
    tokens = subject.tokens(case.rows, case.length, case.seed)
    _check_logits(f"rows of {case.length} tokens in {case.format}", subject(tokens), torch.ones_like(tokens) > 0)


@claim(
    "finite",
    "no logit of a real token is NaN or infinite",
    order=60,
    sweep=ClaimSweep(finite_case, lengths=False, rows=False),
)
def finite(subject: ModelUnderTest) -> ClaimResult:
    count, forbidden = 0, False
    for case, logits, real in _cases(subject):
        count += 1
        _check_logits(case, logits, real)
        forbidden |= bool(logits.isneginf().any())
        kept = real[..., None] & logits.isfinite()
        loss = torch.where(real[..., None], logits, 0.0).log_softmax(-1).masked_fill(~kept, 0.0).mean()
        for name, gradient in gradients(subject.module, loss).items() if subject.module is not None else ():
            if not bool(gradient.isfinite().all()):
                raise ClaimFails(f"{case}: the gradient of {name} is not finite")
    if forbidden:
        _check_forbidden(subject)
    if subject.model is not None:
        _check_masks(subject, subject.model.masks)
    note = "; logits of forbidden tokens are -inf" if forbidden else ""
    return holds(f"every logit and gradient of {count} batches, also padded ones; no real token is fully masked{note}")


def _check_logits(case: str, logits: Tensor, real: Tensor) -> None:
    """No NaN, no +inf, and -inf (a forbidden token) only beside a finite logit."""
    wrong = (logits.isnan() | logits.isposinf()).any(-1) | ~logits.isfinite().any(-1)
    if (wrong & real).any():
        row, position = (wrong & real).nonzero()[0].tolist()
        kind = "NaN" if logits[row, position].isnan().any() else "infinite"
        raise NotFinite(f"{case}: row {row}, position {position} is {kind}")


@torch.no_grad()
def _check_forbidden(subject: ModelUnderTest) -> None:
    """A forbidden token is forbidden in float64 too; otherwise a number was too large or too small for its format."""
    tokens = subject.tokens(3)
    infinite = subject(tokens).isneginf()
    with number_format(subject, FORMATS[REFERENCE]):
        wrong = (infinite & ~subject(tokens).isneginf()).any(-1)
    if wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        raise ClaimFails(f"row {row}, position {position}: a logit is -inf that is finite in float64")


def _cases(subject: ModelUnderTest) -> Iterator[tuple[str, Tensor, Tensor]]:
    """A description, logits [B, N, V], and which tokens are real [B, N]."""
    n = subject.length
    for length in sorted({1, 2, n, subject.long}):
        tokens = subject.tokens(3, length)
        yield f"rows of {length} tokens", subject(tokens), torch.ones_like(tokens, dtype=torch.bool)
    same = torch.zeros_like(subject.tokens(2))
    yield "rows that repeat one token", subject(same), torch.ones_like(same, dtype=torch.bool)
    if subject.pads:
        tokens = subject.tokens(4)
        lengths = torch.tensor([1, n, n // 2, 3], device=tokens.device)
        real = torch.arange(n, device=tokens.device) < lengths[:, None]
        yield f"padded rows of {lengths.tolist()} tokens", subject.with_padding(tokens, lengths), real
    if subject.model is not None and subject.takes_slots and not subject.not_steppable:
        slots = Packed.of([[2, n - 2], [n // 2]], n, device=subject.device)
        yield "packed rows", subject.model(subject.tokens(2), slots), slots.segment >= 0


@torch.no_grad()
def _check_masks(subject: ModelUnderTest, masks: Sequence[Mask]) -> None:
    """Each mask allows every real token a key: otherwise its output is zero by definition, and so never NaN."""
    n = subject.length
    kinds: list[tuple[str, AnySlots]] = [("plain", Range(n)), ("long", Range(subject.long))]
    kinds.append(("padded", Padded(torch.tensor([1, n, n // 2], device=subject.device), n)))
    kinds.append(("packed", Packed.of([[2, n - 2]], n, device=subject.device)))
    for number, mask in enumerate(masks):
        for kind, slots in kinds:
            pairs = make_pairs(slots, slots, heads=1, device=subject.device, batch=slots.rows)
            seen = (mask.allows(pairs) & valid(pairs)).any(-1)[:, 0]  # [B, N]
            real = torch.as_tensor(pairs.q.segment >= 0)[:, 0, :, 0].expand_as(seen)
            if (real & ~seen).any():
                row, position = (real & ~seen).nonzero()[0].tolist()
                place = f"row {row}, position {position} of {kind} rows"
                raise ClaimFails(f"mask {number} ({mask}) allows {place} no key at all")
