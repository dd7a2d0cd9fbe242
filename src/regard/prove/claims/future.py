"""Nothing of the future reaches a logit: neither a gradient nor a value, nor how much of it there is.

A gradient is exact but blind to what is discrete (a bucket, a rank, a top-k), and both are blind to what hangs on the
length alone (a rotary base that grows with the text): hence all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Mechanism, Softmax
from regard.attention.backends.choose import Refused, run
from regard.prove.differ import EXACT, Worst, first_module, gap
from regard.prove.subject import SEED, Forward, Subject, mode
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "a logit depends on its own token and earlier ones"
MODES = (("in evaluation", False), ("in training", True), ("in evaluation again, after training", False))


def judge(subject: Subject) -> Verdict:
    if not subject.causal:
        return unasked("the model is meant to see both ways")
    lengths = sorted({2, min(7, subject.length), subject.length})
    asked = 0
    for told, training in MODES:
        if subject.module is None and told != MODES[0][0]:
            continue
        with mode(subject.module, training):
            for name, forward in _ways(subject):
                for length in lengths:
                    changes = _changes(subject, length)
                    asked += len(changes)
                    if leak := _any_moved(subject, forward, changes, f"{told}{name}"):
                        return fails(leak)
            if leak := _gradient(subject, told) or _together(subject, training, told) or _weights(subject, told):
                return fails(leak)
            if leak := "" if training else _shorter(subject, told):
                return fails(leak)
    kinds = "no gradient and no value" if subject.module is not None else "no value (a bare function: no gradient seen)"
    return holds(
        f"{kinds} came from a later token at any of {subject.length} places, lengths {lengths}, {asked} changes"
    )


def _ways(subject: Subject) -> Iterator[tuple[str, Forward]]:
    if not subject.ways:
        yield "", subject
    for name, forward in subject.ways.items():
        yield f", {name}", forward


class Change(NamedTuple):
    """A row, the same with other tokens from ``place`` on (or at that place alone), and the place."""

    tokens: Tensor  # [1, N]
    changed: Tensor  # [1, N]
    place: int


def _changes(subject: Subject, length: int) -> list[Change]:
    found = []
    for seed in (SEED, SEED + 1):
        tokens = subject.tokens(1, length, seed)
        other = subject.others(tokens, seed + length)
        for place in range(1, length):
            found.append(Change(tokens, torch.cat((tokens[:, :place], other[:, place:]), dim=1), place))
            if seed == SEED:
                one = tokens.clone()
                one[:, place] = other[:, place]
                found.append(Change(tokens, one, place))
    return found


@torch.no_grad()
def _any_moved(subject: Subject, forward: Forward, changes: list[Change], where: str) -> str:
    """The first change of a later token that moves an earlier logit.

    All are asked in one batch, and a few alone. What the batch shows is asked again alone: rows that disturb each other
    are another claim's fault, and when one is seen, each change is asked alone.
    """
    rows = torch.arange(len(changes), device=subject.device) % (12 if subject.takes_source else len(changes))
    texts = (torch.cat([change.tokens for change in changes]), torch.cat([change.changed for change in changes]))
    before, after = (_again(lambda tokens: _rows(subject, forward, tokens, rows), text) for text in texts)
    places = torch.tensor([change.place for change in changes], device=before.device)
    early = (torch.arange(before.shape[1], device=before.device) < places[:, None])[..., None]
    apart = gap(torch.where(early, before, 0.0), torch.where(early, after, 0.0), EXACT)
    alone = changes if apart.clear else changes[:: max(1, len(changes) // 5)]
    return next((leak for change in alone if (leak := _moved(subject, forward, *change, where))), "")


def _rows(subject: Subject, forward: Forward, tokens: Tensor, rows: Tensor) -> Tensor:
    return subject(tokens, rows) if forward is subject else forward(tokens)


@torch.no_grad()
def _moved(
    subject: Subject, forward: Callable[[Tensor], Tensor], tokens: Tensor, changed: Tensor, place: int, where: str
) -> str:
    before, after = (_again(forward, one) for one in (tokens, changed))
    apart = gap(before[:, :place], after[:, :place], EXACT)
    if not apart.clear:
        return ""
    part = ""
    if subject.module is not None:
        texts = (tokens, changed)
        part = first_module(subject.module, lambda text: _again(forward, text), texts, apart.place + 1)
    first = int((tokens != changed)[0].nonzero()[0])
    inside = f", first seen in {part}" if part else ""
    return f"{where}: another token at place {first} of {tokens.shape[1]} moves the logits of {apart}{inside}"


def _again(forward: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    torch.manual_seed(3)  # the same dropout each time
    return forward(tokens)


def _together(subject: Subject, training: bool, told: str) -> str:
    """Several rows at once and, where the model takes them, long ones: fast paths cut a text into blocks."""
    if training and subject.named("batch_invariant"):
        return ""
    for length in sorted({subject.length, subject.long}):
        tokens = subject.tokens(3, length, SEED + 2)
        other = subject.others(tokens)
        for place in sorted({1, length // 3, min(63, length - 1), min(64, length - 1), length // 2 + 1, length - 1}):
            changed = torch.cat((tokens[:, :place], other[:, place:]), dim=1)
            for name, forward in _ways(subject):
                if leak := _moved(subject, forward, tokens, changed, place, f"{told}{name}, three rows"):
                    return leak
    return ""


@torch.no_grad()
def _shorter(subject: Subject, told: str) -> str:
    """A text cut short has the logits that it has as the beginning of a longer one."""
    tokens = subject.tokens(1, subject.length, SEED + 3)
    for name, forward in _ways(subject):
        whole, worst = forward(tokens), Worst()
        for length in range(1, tokens.shape[1]):
            case = f"{told}{name}: {length} tokens alone and as the beginning of {tokens.shape[1]}"
            if worst.add(forward(tokens[:, :length]), whole[:, :length], case):
                return worst.found
    return ""


def _gradient(subject: Subject, told: str) -> str:
    """The gradient of each place's logits with respect to the embeddings of later tokens."""
    if subject.module is None:
        return ""
    tokens = subject.tokens(1)
    found: list[tuple[str, Tensor]] = []

    def keep(name: str) -> Callable[..., Tensor | None]:
        def hook(_: nn.Module, given: Any, out: Tensor) -> Tensor | None:
            if not (given and isinstance(given[0], Tensor) and given[0].shape == tokens.shape and out.ndim == 3):
                return None
            out = out if out.requires_grad else out.detach().requires_grad_()
            found.append((name, out))
            return out

        return hook

    tables = [(name, part) for name, part in subject.module.named_modules() if isinstance(part, nn.Embedding)]
    hooks = [part.register_forward_hook(keep(name)) for name, part in tables]
    try:
        with torch.enable_grad():
            logits = subject(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    found = [(name, out) for name, out in found if out.shape[1] == tokens.shape[1]]
    if not found or not logits.requires_grad:
        return ""
    direction = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(SEED)).to(logits)
    for place in range(tokens.shape[1] - 1):
        aim = (logits[:, place] * direction).sum()
        gradients = torch.autograd.grad(aim, [out for _, out in found], retain_graph=True, allow_unused=True)
        for (name, _), gradient in zip(found, gradients, strict=True):
            if gradient is not None and not bool((gradient[:, place + 1 :] == 0).all()):
                later = gradient[:, place + 1 :].abs().amax((0, 2))
                far = int((later != 0).nonzero()[0]) + place + 1
                size = float(later.max())
                return f"{told}: the logits of place {place} have a gradient of {size:.2g} from place {far} of {name}"
    return ""


@torch.no_grad()
def _weights(subject: Subject, told: str) -> str:
    """Whoever asks a layer for its weights sees none on a later token, and gets the same values."""
    if subject.model is None or subject.takes_source or subject.module is None:
        return ""
    seen: list[tuple[str, Softmax, tuple[Any, ...], Tensor]] = []
    layers = [(name, part) for name, part in subject.module.named_modules() if isinstance(part, Mechanism)]

    def keep(name: str) -> Callable[..., None]:
        return lambda part, given, out: seen.append((name, part, given, out.values))

    exact = [(name, part) for name, part in layers if type(part) is Softmax]
    hooks = [part.register_forward_hook(keep(name)) for name, part in exact]
    try:
        subject(subject.tokens(2))
    finally:
        for hook in hooks:
            hook.remove()
    for name, part, (q, k, v, plan), values in seen:
        try:
            out = run(part.call(q, k, v, plan, weights=True)._replace(dropout=0.0), part.backend)
        except Refused:  # a backend that keeps no weights gives none
            continue
        if out.weights is None or out.weights.shape[-1] != out.weights.shape[-2]:
            continue
        ahead = out.weights.triu(1)
        if bool((ahead != 0).any()):
            place = int(ahead.amax((0, 1, 3)).nonzero()[0])
            return (
                f"{told}: asked for its weights, {name} gives place {place} weights of {float(ahead.max()):.2g} ahead"
            )
        if not part.training and gap(out.values.flatten(0, 1), values.flatten(0, 1)).clear:
            return f"{told}: asked for its weights, {name} gives other values"
    return ""
