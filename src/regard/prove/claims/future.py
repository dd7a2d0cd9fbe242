"""No logit depends on a later token: neither through a gradient nor through a value, nor on the number of later tokens.

A gradient is exact but does not see what is discrete (a bucket, a rank, a top-k), and neither gradients nor changed
tokens show what depends on the length alone (a rotary base that grows with the text): hence all three.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Plan, Softmax
from regard.attention.backends.choose import BackendRefused, run
from regard.models.base import Model
from regard.prove import Case, ClaimFails, ClaimResult, ClaimSweep, ModelUnderTest, claim, holds, not_applicable
from regard.prove.comparison import ROUNDING, Hook, LargestGap, first_difference, forward_hooks, gap, record_outputs
from regard.prove.model_under_test import SEED, SOURCES, Forward, training_mode
from regard.prove.rounding import compare_case, exact, real_gap, repeats

ALONE = 3  # rows: in larger batches the beginning is not computed alone
DOUBTFUL = 4  # small gradients that are computed again with other roundings
MODES = (("in evaluation", False), ("in training", True), ("in evaluation again, after training", False))


def future_case(subject: ModelUnderTest, case: Case) -> None:
    """Other tokens in the second piece do not move the logits of the first, nor does leaving it out."""
    tokens, position = subject.tokens(case.rows, case.length, case.seed), case.pieces[0]
    other = subject.other_tokens(tokens, case.seed)
    change = Change(tokens, torch.cat((tokens[:, :position], other[:, position:]), dim=1), position)
    for name, forward in subject.paths.items():
        _check_change(subject, forward, change, f"{case.format}{name}, {case.rows} rows")
        if case.rows > ALONE:
            continue
        compare_case(
            subject,
            case,
            lambda forward=forward: forward(tokens[:, :position]),
            lambda forward=forward: forward(tokens)[:, :position],
            f"{position} tokens alone and as the beginning of {case.length}{name}",
        )


@claim("future", "a logit depends on its own token and earlier ones", order=10, sweep=ClaimSweep(future_case, pieces=2))
def future(subject: ModelUnderTest) -> ClaimResult:
    if not subject.causal:
        return not_applicable("the model is bidirectional")
    lengths = sorted({2, min(7, subject.length), subject.length})
    count = 0
    for mode, training in MODES if subject.module is not None else MODES[:1]:
        with training_mode(subject.module, training):
            for length in lengths if mode != MODES[2][0] else lengths[-1:]:
                changes = _changes(subject, length)
                count += len(changes)
                _check_changes(subject, changes, mode)
            if subject.module is not None and mode != MODES[2][0]:
                _check_gradients(subject, subject.module, mode)
            if training and not subject.not_batch_invariant:  # in evaluation the sweep does it
                _check_batches(subject, mode)
            if subject.model is not None and subject.seq2seq is None:
                _check_weights(subject, subject.model, mode)
            if mode == MODES[0][0]:
                _check_lengths(subject, mode)
    kinds = "no gradient and no value" if subject.module is not None else "no value (a plain function has no gradient)"
    return holds(f"{kinds} comes from a later token: {subject.length} positions, lengths {lengths}, {count} changes")


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
def _check_changes(subject: ModelUnderTest, changes: list[Change], mode: str) -> None:
    """No change of a later token moves an earlier logit.

    All changes run in one batch, and a few alone. If the batch shows a leak, each change runs alone: a dependence
    between rows is the fault of another claim.
    """
    rows = torch.arange(len(changes), device=subject.device) % (SOURCES if subject.seq2seq else len(changes))
    texts = (torch.cat([change.tokens for change in changes]), torch.cat([change.changed for change in changes]))
    positions = torch.tensor([change.position for change in changes], device=subject.device)
    early = (torch.arange(texts[0].shape[1], device=subject.device) < positions[:, None])[..., None]
    for name, forward in subject.paths.items():
        call = (lambda tokens: subject(tokens, rows)) if forward is subject else forward
        before, after = (torch.where(early, _seeded(call, text), 0.0) for text in texts)
        leaks = gap(before, after, exact(subject)).clear
        for change in changes if leaks else changes[:: max(1, len(changes) // 5)]:
            _check_change(subject, forward, change, f"{mode}{name}")


@torch.no_grad()
def _check_change(subject: ModelUnderTest, forward: Forward, change: Change, where: str) -> None:
    """The change of later tokens moves no earlier logit; if it does, the first module that shows it is named."""
    tokens, changed, position = change

    def logits(text: Tensor) -> Callable[[], Tensor]:
        return lambda: _seeded(forward, text)[:, :position]

    apart = real_gap(subject, logits(tokens), logits(changed), exact(subject))
    if apart is None:
        return
    module = ""
    if subject.module is not None:
        one, other = (
            record_outputs(subject.module, lambda text=text: _seeded(forward, text), tokens.shape)
            for text in (tokens, changed)
        )
        difference = first_difference(one, other, lambda x: x[:, : apart.position + 1], exact(subject))
        module = f", first seen in {difference[0]}" if difference else ""
    moved = f"another token at position {int((tokens != changed)[0].nonzero()[0])} of {tokens.shape[1]}"
    raise apart.failure(f"{where}: {moved} moves the logits of {apart}{module}")


def _seeded(forward: Forward, tokens: Tensor) -> Tensor:
    torch.manual_seed(3)  # the same dropout each time
    return forward(tokens)


def _check_batches(subject: ModelUnderTest, mode: str) -> None:
    """Several rows at once and, where the model takes them, long ones: fast paths split a sequence into blocks."""
    for length in sorted({subject.length, subject.long}):
        tokens = subject.tokens(3, length, SEED + 2)
        other = subject.other_tokens(tokens)
        positions = {1, length // 3, min(63, length - 1), min(64, length - 1), length // 2 + 1, length - 1}
        for position in sorted(positions):
            change = Change(tokens, torch.cat((tokens[:, :position], other[:, position:]), dim=1), position)
            for name, forward in subject.paths.items():
                _check_change(subject, forward, change, f"{mode}{name}, three rows")


@torch.no_grad()
def _check_lengths(subject: ModelUnderTest, mode: str) -> None:
    """A shorter sequence has the logits that it has as the beginning of a longer one."""
    tokens = subject.tokens(1, subject.length, SEED + 3)
    for name, forward in subject.paths.items():
        whole, largest = forward(tokens), LargestGap()
        for length in range(1, tokens.shape[1]):
            case = f"{mode}{name}: {length} tokens alone and as the beginning of {tokens.shape[1]}"
            largest.add(forward(tokens[:, :length]), whole[:, :length], case)


def _check_gradients(subject: ModelUnderTest, module: nn.Module, mode: str) -> None:
    """The logits at a position have no gradient with respect to the embedding of a later token."""
    tokens = subject.tokens(1)
    logits, embedded = _embedded(subject, module, tokens)
    if not embedded or not logits.requires_grad:
        return
    direction = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(SEED)).to(logits)
    doubtful = set[tuple[str, int]]()
    for position in range(tokens.shape[1] - 1):
        for name, gradient in _later_gradients(logits, embedded, position, direction).items():
            later = gradient.abs().amax((0, 2))
            if not bool((later != 0).any()):
                continue
            clear = float(later.max()) > ROUNDING * max(1.0, float(logits.detach().abs().nan_to_num(0, 0, 0).max()))
            if not clear and len(doubtful) < DOUBTFUL:
                doubtful.add((name, position))

                def again(name: str = name, position: int = position) -> Tensor:
                    logits, embedded = _embedded(subject, module, tokens)
                    return _later_gradients(logits, embedded, position, direction)[name]

                clear = repeats(subject, again)
            if clear:
                place = f"position {int(later.nonzero()[0]) + position + 1} of {name}"
                found = f"the logits at position {position} have a gradient of {float(later.max()):.2g} from {place}"
                raise ClaimFails(f"{mode}: {found}")


def _embedded(subject: ModelUnderTest, module: nn.Module, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and what each table of embeddings returned for the tokens."""
    embedded: dict[str, Tensor] = {}

    def record(name: str) -> Hook:
        def hook(table: nn.Module, given: tuple[object, ...], out: Tensor) -> Tensor | None:
            first = given[0] if given else None  # a table of positions may be given a shape
            if not (isinstance(first, Tensor) and first.shape == tokens.shape and out.ndim == 3):
                return None
            out = out if out.requires_grad else out.detach().requires_grad_()
            embedded[name] = out
            return out

        return hook

    tables = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    with torch.enable_grad(), forward_hooks((part, record(name)) for name, part in tables):
        torch.manual_seed(3)  # the same dropout each time
        return subject(tokens), embedded


def _later_gradients(
    logits: Tensor, embedded: dict[str, Tensor], position: int, direction: Tensor
) -> dict[str, Tensor]:
    """By table, the gradient of the logits at a position with respect to the embeddings of later tokens."""
    loss = (logits[:, position] * direction).sum()
    found = torch.autograd.grad(loss, [*embedded.values()], retain_graph=True, allow_unused=True)
    return {name: g[:, position + 1 :] for name, g in zip(embedded, found, strict=True) if g is not None}


@torch.no_grad()
def _check_weights(subject: ModelUnderTest, model: Model, mode: str) -> None:
    """Attention weights that a layer returns on request are zero for later tokens, with the same output values."""
    calls: list[tuple[Softmax, tuple[Tensor, Tensor, Tensor, Plan], Tensor]] = []
    layers = {part: name for name, part in model.mechanisms() if type(part) is Softmax}
    with forward_hooks((part, lambda part, given, out: calls.append((part, given, out.values))) for part in layers):
        subject(subject.tokens(2))
    for part, (q, k, v, plan), values in calls:
        try:
            out = run(part.call(q, k, v, plan, weights=True)._replace(dropout=0.0), part.backend)
        except BackendRefused:  # a backend that has no weights to return
            continue
        if out.weights is None or out.weights.shape[-1] != out.weights.shape[-2]:
            continue
        where, ahead = f"{mode}: {layers[part]}", out.weights.triu(1)
        if bool((ahead != 0).any()):
            position = int(ahead.amax((0, 1, 3)).nonzero()[0])
            raise ClaimFails(f"{where} returns weights up to {float(ahead.max()):.2g} on tokens after {position}")
        if not part.training and gap(out.values.flatten(0, 1), values.flatten(0, 1)).clear:
            raise ClaimFails(f"{where} gives other values when it returns its weights")
