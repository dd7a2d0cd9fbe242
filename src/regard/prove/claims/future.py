"""No logit depends on a later token: neither through a gradient nor through a value, nor on the number of later tokens.

A gradient is exact but does not see what is discrete (a bucket, a rank, a top-k), and neither gradients nor changed
tokens show what depends on the length alone (a rotary base that grows with the text): hence all three.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Plan, Softmax
from regard.attention.backends.choose import BackendRefused, run
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.comparison import EXACT, LargestGap, gap
from regard.prove.dependency import Hook, first_difference, forward_hooks, record_outputs
from regard.prove.model_under_test import SEED, SOURCES, Forward, training_mode

MODES = (("in evaluation", False), ("in training", True), ("in evaluation again, after training", False))


@claim("future", "a logit depends on its own token and earlier ones", order=10)
def future(subject: ModelUnderTest) -> ClaimResult:
    if not subject.causal:
        return not_applicable("the model is bidirectional")
    lengths = sorted({2, min(7, subject.length), subject.length})
    count = 0
    for mode, training in MODES if subject.module is not None else MODES[:1]:
        with training_mode(subject.module, training):
            for name, forward in _paths(subject):
                for length in lengths:
                    changes = _changes(subject, length)
                    count += len(changes)
                    if leak := _any_leak(subject, forward, changes, f"{mode}{name}"):
                        return fails(leak)
            leak = _gradient_leak(subject) or _batch_leak(subject, training) or _weights_leak(subject)
            if leak := leak or ("" if training else _length_leak(subject)):
                return fails(f"{mode}{leak}")
    kinds = "no gradient and no value" if subject.module is not None else "no value (a plain function has no gradient)"
    return holds(f"{kinds} comes from a later token: {subject.length} positions, lengths {lengths}, {count} changes")


def _paths(subject: ModelUnderTest) -> Iterator[tuple[str, Forward]]:
    """The code paths to the logits, by name."""
    if not subject.variants:
        yield "", subject
    for name, forward in subject.variants.items():
        yield f", {name}", forward


class Change(NamedTuple):
    """Rows, and the same with other tokens from ``position`` on or at that position alone."""

    tokens: Tensor  # [B, N]
    changed: Tensor  # [B, N]
    position: int


def _changes(subject: ModelUnderTest, length: int) -> list[Change]:
    """Every later token of a row changed alone, and all of them from each position on."""
    changes = []
    for seed in (SEED, SEED + 1):
        tokens = subject.tokens(1, length, seed)
        other = subject.other_tokens(tokens, seed + length)
        for position in range(1, length):
            changes.append(Change(tokens, torch.cat((tokens[:, :position], other[:, position:]), dim=1), position))
            if seed == SEED:
                one = tokens.clone()
                one[:, position] = other[:, position]
                changes.append(Change(tokens, one, position))
    return changes


@torch.no_grad()
def _any_leak(subject: ModelUnderTest, forward: Forward, changes: list[Change], where: str) -> str:
    """The first change of a later token that moves an earlier logit.

    All changes run in one batch, and a few alone. If the batch shows a leak, each change runs alone: a dependence
    between rows is the fault of another claim.
    """
    rows = torch.arange(len(changes), device=subject.device) % (SOURCES if subject.seq2seq else len(changes))
    texts = (torch.cat([change.tokens for change in changes]), torch.cat([change.changed for change in changes]))
    call = (lambda tokens: subject(tokens, rows)) if forward is subject else forward
    before, after = (_seeded(call, text) for text in texts)
    positions = torch.tensor([change.position for change in changes], device=before.device)
    early = (torch.arange(before.shape[1], device=before.device) < positions[:, None])[..., None]
    apart = gap(torch.where(early, before, 0.0), torch.where(early, after, 0.0), EXACT)
    alone = changes if apart.clear else changes[:: max(1, len(changes) // 5)]
    return next((leak for change in alone if (leak := _leak(subject, forward, change, where))), "")


@torch.no_grad()
def _leak(subject: ModelUnderTest, forward: Forward, change: Change, where: str) -> str:
    """How a change of later tokens moves earlier logits, and the first module that shows it."""
    tokens, changed, position = change
    before, after = (_seeded(forward, text) for text in (tokens, changed))
    apart = gap(before[:, :position], after[:, :position], EXACT)
    if not apart.clear:
        return ""
    module = ""
    if subject.module is not None:
        one, other = (
            record_outputs(subject.module, lambda text=text: _seeded(forward, text), tokens.shape)
            for text in (tokens, changed)
        )
        difference = first_difference(one, other, lambda x: x[:, : apart.position + 1], EXACT)
        module = f", first seen in {difference[0]}" if difference else ""
    first = int((tokens != changed)[0].nonzero()[0])
    return f"{where}: another token at position {first} of {tokens.shape[1]} moves the logits of {apart}{module}"


def _seeded(forward: Forward, tokens: Tensor) -> Tensor:
    torch.manual_seed(3)  # the same dropout each time
    return forward(tokens)


def _batch_leak(subject: ModelUnderTest, training: bool) -> str:
    """Several rows at once and, where the model takes them, long ones: fast paths split a sequence into blocks."""
    if training and subject.not_batch_invariant:
        return ""
    for length in sorted({subject.length, subject.long}):
        tokens = subject.tokens(3, length, SEED + 2)
        other = subject.other_tokens(tokens)
        positions = {1, length // 3, min(63, length - 1), min(64, length - 1), length // 2 + 1, length - 1}
        for position in sorted(positions):
            change = Change(tokens, torch.cat((tokens[:, :position], other[:, position:]), dim=1), position)
            for name, forward in _paths(subject):
                if leak := _leak(subject, forward, change, f"{name}, three rows"):
                    return leak
    return ""


@torch.no_grad()
def _length_leak(subject: ModelUnderTest) -> str:
    """A shorter sequence has the logits that it has as the beginning of a longer one."""
    tokens = subject.tokens(1, subject.length, SEED + 3)
    for name, forward in _paths(subject):
        whole, largest = forward(tokens), LargestGap()
        for length in range(1, tokens.shape[1]):
            case = f"{name}: {length} tokens alone and as the beginning of {tokens.shape[1]}"
            if largest.add(forward(tokens[:, :length]), whole[:, :length], case):
                return largest.description
    return ""


def _gradient_leak(subject: ModelUnderTest) -> str:
    """A gradient of the logits at one position with respect to the embedding of a later token."""
    if subject.module is None:
        return ""
    tokens = subject.tokens(1)
    embedded: list[tuple[str, Tensor]] = []

    def record(name: str) -> Hook:
        def hook(table: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
            if not (given and given[0].shape == tokens.shape and out.ndim == 3):
                return None
            out = out if out.requires_grad else out.detach().requires_grad_()
            embedded.append((name, out))
            return out

        return hook

    tables = [(name, part) for name, part in subject.module.named_modules() if isinstance(part, nn.Embedding)]
    with torch.enable_grad(), forward_hooks((part, record(name)) for name, part in tables):
        logits = subject(tokens)
    if not embedded or not logits.requires_grad:
        return ""
    direction = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(SEED)).to(logits)
    for position in range(tokens.shape[1] - 1):
        loss = (logits[:, position] * direction).sum()
        gradients = torch.autograd.grad(loss, [out for _, out in embedded], retain_graph=True, allow_unused=True)
        for (name, _), gradient in zip(embedded, gradients, strict=True):
            later = gradient[:, position + 1 :].abs().amax((0, 2)) if gradient is not None else torch.zeros(1)
            if bool((later != 0).any()):
                far, size = int(later.nonzero()[0]) + position + 1, float(later.max())
                return f": the logits at position {position} have a gradient of {size:.2g} at position {far} of {name}"
    return ""


@torch.no_grad()
def _weights_leak(subject: ModelUnderTest) -> str:
    """Attention weights that a layer returns on request are zero for later tokens, with the same output values."""
    if subject.model is None or subject.seq2seq is not None:
        return ""
    calls: list[tuple[Softmax, tuple[Tensor, Tensor, Tensor, Plan], Tensor]] = []
    layers = {part: name for name, part in subject.model.mechanisms() if type(part) is Softmax}
    with forward_hooks((part, lambda part, given, out: calls.append((part, given, out.values))) for part in layers):
        subject(subject.tokens(2))
    for part, (q, k, v, plan), values in calls:
        try:
            out = run(part.call(q, k, v, plan, weights=True)._replace(dropout=0.0), part.backend)
        except BackendRefused:  # a backend that has no weights to return
            continue
        if out.weights is None or out.weights.shape[-1] != out.weights.shape[-2]:
            continue
        ahead = out.weights.triu(1)
        if bool((ahead != 0).any()):
            position = int(ahead.amax((0, 1, 3)).nonzero()[0])
            return (
                f": {layers[part]} returns weights of {float(ahead.max()):.2g} on later tokens for position {position}"
            )
        if not part.training and gap(out.values.flatten(0, 1), values.flatten(0, 1)).clear:
            return f": {layers[part]} gives other values when it returns its weights"
    return ""
