"""The effects of faults, measured by hand: how far logits move when something changes that must not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from faulty_torch import LENGTH, VOCABULARY
from torch import Tensor

from regard.attention import Packed
from regard.data import TextBatch

CLEAR = 0.02  # a difference of logits that is no rounding
ROUNDING = 1e-4

Forward = Callable[[Tensor], Tensor]


def tokens(rows: int = 4, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


@torch.no_grad()
def moved_by_the_future(forward: Forward) -> float:
    """How far logits move when a later token is exchanged, at worst."""
    text, worst = tokens(), 0.0
    before = forward(text)
    for place in range(1, LENGTH):
        other = text.clone()
        other[:, place] = (other[:, place] + 1) % VOCABULARY
        worst = max(worst, far(before[:, :place], forward(other)[:, :place]))
    return worst


@torch.no_grad()
def moved_by_the_far_future(forward: Forward) -> float:
    """The same for what lies more than two tokens ahead."""
    text = tokens()
    other = torch.cat((text[:, :10], (text[:, 10:] + 1) % VOCABULARY), dim=1)
    return far(forward(text)[:, :8], forward(other)[:, :8])


def gradient_from_the_future(forward: Forward, embed: torch.nn.Embedding) -> float:
    """The largest gradient of a logit with respect to a later token's embedding."""
    found: list[Tensor] = []
    hook = embed.register_forward_hook(lambda *call: found.append(call[-1].requires_grad_()))
    logits = forward(tokens())
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, 7].square().sum(), found[0])
    return float(gradient[:, 8:].abs().max())


@torch.no_grad()
def moved_by_padding(padded: Callable[[Tensor, Tensor], Tensor], forward: Forward) -> float:
    lengths, text = torch.tensor([3, 24, 11, 17]), tokens()
    together = padded(text, lengths)
    alone = [forward(row[None, :n])[0] for row, n in zip(text, lengths.tolist(), strict=True)]
    return max(far(some[: len(one)], one) for some, one in zip(together, alone, strict=True))


@torch.no_grad()
def moved_by_steps(model: Any, pieces: list[int]) -> float:
    """How far the logits of ``step``, piece by piece, are from those of the forward pass."""
    text = tokens(2, sum(pieces))
    state, found = model.start(2, sum(pieces)), []
    for piece in text.split(pieces, dim=1):
        logits, state = model.step(piece, state)
        found.append(logits)
    return far(torch.cat(found, dim=1), model(text))


@torch.no_grad()
def moved_by_packing(model: Any) -> float:
    text = tokens(1, 20)
    alone = torch.cat((model(text[:, :8]), model(text[:, 8:])), dim=1)
    return far(model(text, Packed.of([[8, 12]])), alone)


@torch.no_grad()
def moved_by_neighbours(forward: Forward) -> float:
    text = tokens()
    return max(far(forward(text)[i], forward(text[i : i + 1])[0]) for i in range(len(text)))


@torch.no_grad()
def moved_by_order(forward: Forward) -> float:
    """How far an encoder is from giving turned rows the turned logits."""
    text = tokens()
    return far(forward(text.flip(1)), forward(text).flip(1))


@torch.no_grad()
def moved_by_length(forward: Forward, length: int) -> float:
    """How far the logits of a text's beginning move when the text continues to ``length`` tokens, at worst."""
    text = tokens()[:, :length]
    return max(far(forward(text)[:, :n], forward(text[:, :n])) for n in range(1, length))


@torch.no_grad()
def moved_by_documents(model: Any, lengths: list[int]) -> float:
    """How far the logits of documents packed into one row are from those of each alone."""
    text = tokens(1, sum(lengths))
    alone = torch.cat([model(piece) for piece in text.split(lengths, dim=1)], dim=1)
    return far(model(text, Packed.of([lengths])), alone)


def follows(batch: TextBatch) -> bool:
    """Whether each counted target is the input after its own, if that one counts too: behind it may be padding."""
    counted = (batch.targets[:, :-1] >= 0) & (batch.targets[:, 1:] >= 0)
    return bool((batch.targets[:, :-1] == batch.inputs[:, 1:])[counted].all())


def loss(model: Any, task: Any, batches: list[TextBatch]) -> float:
    """The loss as the trainer takes it: all sums over all counts."""
    terms = [task.terms(model, batch)["next_token"] for batch in batches]
    return float(sum(term.total for term in terms) / sum(term.count for term in terms))


def shared(data: Any, length: int) -> float:
    """The share of the held-out runs of ``length`` tokens that training meets in 200 batches."""

    def runs(batch: TextBatch) -> set[tuple[int, ...]]:
        return {tuple(run) for run in batch.inputs.unfold(1, length, 1).flatten(0, 1).tolist()}

    trained = set().union(*(runs(data.batch(step, seed=1, size=16)) for step in range(200)))
    held_out = set().union(*(runs(batch) for batch in data.validation_batches(4)))
    return len(held_out & trained) / len(held_out)


def reloaded(model: Any) -> Any:
    again = model.config.build()
    again.load_state_dict(model.state_dict())
    return again.eval()


def gradients(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """The logits, and the gradients of all weights one after the other."""
    logits = model(tokens())
    found = torch.autograd.grad(logits.square().mean(), [*model.parameters()])
    return logits, torch.cat([gradient.flatten() for gradient in found])


def trained_on(data: Any, rows: range) -> int:
    """How many of the held-out rows are among these rows of training, tokens and targets alike."""

    def all_of(batches: Any) -> set[tuple[int, ...]]:
        return {tuple(row) for batch in batches for row in torch.cat((batch.inputs, batch.targets), dim=1).tolist()}

    return len(all_of(data.batch(i, seed=1, size=1) for i in rows) & all_of(data.validation_batches(4)))
