"""The one small GPT of test_contract.py, its texts, and what each batch of them must give. Shared with its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import AnySlots, Packed, Padded
from regard.models.gpt import GPT, GPTConfig

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# PyTorch 2.11 tells its compiler that the CPU kernel's log-sum-exp is float32 even for float64, and then crashes on it.
_doubles = torch.empty(1, 1, 1, 8, dtype=torch.float64, device="meta")
_told = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(_doubles, _doubles, _doubles)[1].dtype
COMPILED = [dtype for dtype in TOLERANCE if dtype == torch.float32 or _told == dtype]
VOCABULARY = 29
LENGTH = 32
RAGGED = (32, 20, 5, 1)
DOCUMENTS = ((10, 22), (5, 7, 4), (32,), (1, 30))
UNCOUNTED = -1
SMALL = GPTConfig(
    vocabulary=VOCABULARY, context=64, layers=2, heads=4, kv_heads=2, width=32, ngrams=2, buckets=64, zero_init=False
)


def small_gpt(dtype: torch.dtype, **changes: Any) -> GPT:
    """The same weights whenever it is called, none of them zero: a part that does nothing would prove nothing."""
    torch.manual_seed(1)
    model = replace(SMALL, **changes).build()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) / 8)
    return model.to(dtype)


def texts(lengths: Sequence[int], seed: int = 2) -> list[Tensor]:
    """One text per length, each with one token more than is fed: the last is only ever a target."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (n + 1,), generator=generator) for n in lengths]


class Batch(NamedTuple):
    """Texts laid out in rows: ``places`` says where each sits (row, first column, length)."""

    tokens: Tensor  # [B, N]
    targets: Tensor  # [B, N], -1 where nothing is to be learned
    slots: AnySlots | None
    places: list[tuple[int, int, int]]


def lay(rows: Sequence[Sequence[Tensor]], length: int, slots: AnySlots | None = None) -> Batch:
    """The texts of each row one after the other, and tokens that nobody may notice in what is left of it."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY, (len(rows), length), generator=generator)
    targets = torch.full_like(tokens, UNCOUNTED)
    places = []
    for b, row in enumerate(rows):
        start = 0
        for text in row:
            count = len(text) - 1
            tokens[b, start : start + count], targets[b, start : start + count] = text[:-1], text[1:]
            places.append((b, start, count))
            start += count
    return Batch(tokens, targets, slots, places)


def plain_batch(count: int = 4, length: int = LENGTH, seed: int = 2) -> Batch:
    """Rows of one length."""
    return lay([[text] for text in texts([length] * count, seed)], length)


def padded_batch(lengths: Sequence[int] = RAGGED, length: int = LENGTH, seed: int = 2) -> Batch:
    """One text a row, then padding."""
    return lay([[text] for text in texts(lengths, seed)], length, Padded(torch.tensor(lengths), length))


def packed_batch(documents: Sequence[Sequence[int]] = DOCUMENTS, length: int = LENGTH, known: bool = True) -> Batch:
    """Several texts a row; ``known``: the host knows where each ends."""
    every = iter(texts([n for row in documents for n in row]))
    slots = Packed.of(documents, length)
    slots = slots if known else slots._replace(documents=None)
    return lay([[next(every) for _ in row] for row in documents], length, slots)


BATCHES: dict[str, Callable[[], Batch]] = {"plain": plain_batch, "padded": padded_batch, "packed": packed_batch}


def part(batch: Batch, rank: int, size: int) -> Batch:
    """The rows that one of ``size`` ranks takes: every ``size``-th, so that the ranks' counts differ."""
    slots, own = batch.slots, slice(rank, None, size)
    if isinstance(slots, Padded):
        slots = Padded(slots.lengths[own], slots.length)
    elif isinstance(slots, Packed):
        documents = None if slots.documents is None else slots.documents[own]
        slots = Packed(slots.segment[own], slots.phase[own], documents)
    places = [(b // size, start, count) for b, start, count in batch.places if b % size == rank]
    return Batch(batch.tokens[own], batch.targets[own], slots, places)


class Outcome(NamedTuple):
    """What must be the same everywhere: each text's logits, the summed loss, every parameter's gradient."""

    logits: list[Tensor]  # [n, V] per text
    loss: Tensor
    gradients: dict[str, Tensor]


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy, summed: sums add up over rows, ranks and documents, means do not."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=UNCOUNTED, reduction="sum")


def outcome(model: nn.Module, batch: Batch, run: Callable[..., Tensor] | None = None) -> Outcome:
    """One forward and backward pass; ``run`` (the model itself by default) gives the logits."""
    model.zero_grad()
    logits = (model if run is None else run)(batch.tokens, batch.slots)
    loss = loss_sum(logits, batch.targets)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Outcome([logits[b, start : start + n].detach() for b, start, n in batch.places], loss.detach(), gradients)


def alone(model: nn.Module, batch: Batch) -> Outcome:
    """The measure of all things: each text of the batch by itself, in eager mode, gradients added up."""
    singles = []
    for b, start, n in batch.places:
        cut = slice(start, start + n)
        singles.append(
            outcome(model, Batch(batch.tokens[b : b + 1, cut], batch.targets[b : b + 1, cut], None, [(0, 0, n)]))
        )
    total = {name: torch.stack([one.gradients[name] for one in singles]).sum(0) for name in singles[0].gradients}
    return Outcome([one.logits[0] for one in singles], torch.stack([one.loss for one in singles]).sum(), total)


def far(actual: Tensor, expected: Tensor) -> float:
    """The greatest difference, relative to the expected tensor's own size where that is above 1."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    difference = (actual - expected).abs().max() / expected.abs().max().clamp(min=1)
    return difference.item() if torch.isfinite(difference) else float("inf")


def assert_same(actual: Outcome, expected: Outcome) -> None:
    """Within the tolerance of the type; every parameter has its gradient."""
    tolerance = TOLERANCE[expected.loss.dtype]
    assert actual.gradients.keys() == expected.gradients.keys()
    assert all(gradient.any() for gradient in expected.gradients.values()), "a zero gradient would prove nothing"
    pairs = {f"logits of text {i}": pair for i, pair in enumerate(zip(actual.logits, expected.logits, strict=True))}
    pairs |= {name: (actual.gradients[name], expected.gradients[name]) for name in expected.gradients}
    pairs["loss"] = (actual.loss, expected.loss)
    wrong = {name: far(*pair) for name, pair in pairs.items() if far(*pair) > tolerance}
    assert not wrong, wrong


def check_steps(model: GPT, lengths: tuple[int, ...], pieces: tuple[int, ...], fixed: bool = False) -> list[int]:
    """Feed ragged texts in ``pieces`` (columns at a time); every logit is that of the text alone. Gives cache sizes."""
    batch = padded_batch(lengths, length=sum(pieces))
    state = model.start(len(lengths), capacity=sum(pieces), fixed=fixed)
    left, start, parts = torch.tensor(lengths), 0, []
    for piece in pieces:
        real = None if len(set(lengths)) == 1 else left.clamp(0, piece)
        logits, state = model.step(batch.tokens[:, start : start + piece], state, real)
        parts.append(logits)
        left, start = left - piece, start + piece
    every = torch.cat(parts, dim=1)
    for (row, _, n), expected in zip(batch.places, alone(model, batch).logits, strict=True):
        assert far(every[row, :n], expected) < TOLERANCE[expected.dtype]
    return [memory.size for memory in state.cache_indices]


class FromLengths(nn.Module):
    """What one would export to serve padded batches: slots are made inside, tensors alone cross the boundary."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.model(tokens, Padded(lengths, tokens.shape[1]))
