"""Each of the twenty faults does what it says, and its sound twin does not: seen by hand, fault by fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from fault_data import ALPHABET, Sentences, text_data
from fault_torch import LENGTH, VOCABULARY, Plain, RoomyBatch, lively
from faults import FAULTS, HEALTHY, LONG, WINDOW, corrected, small
from torch import Tensor

from regard.attention import Packed
from regard.data import Characters, TextBatch, TextData
from regard.errors import UserError
from regard.tasks import Language

CLAIMS = "future padding batching packing step finite order backends tokenizer loss accumulation overlap checkpoint"
BY_NAME = {fault.name: fault for fault in FAULTS}
PLAIN, ENCODER = lively(Plain()).eval(), lively(Plain(causal=False)).eval()
CLEAR = 0.02  # differences of logits: above it nobody takes them for rounding
ROUNDING = 1e-4

Forward = Callable[[Tensor], Tensor]


def made(name: str) -> dict[str, Any]:
    arguments = BY_NAME[name].make()
    for key in ("model", "forward"):
        if isinstance(module := arguments.get(key), torch.nn.Module):
            module.eval()
    return arguments


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


def test_off_by_one_mask():
    forward = made("off-by-one mask")["forward"]
    assert moved_by_the_future(forward) > CLEAR
    assert moved_by_the_far_future(forward) < ROUNDING  # one token ahead in each of two layers, and no further
    assert moved_by_the_future(PLAIN) < ROUNDING


def test_mask_lost_when_weights_are_asked_for():
    forward = made("mask lost when weights are asked for")["forward"]
    assert moved_by_the_future(forward) > CLEAR
    assert moved_by_the_future(PLAIN) < ROUNDING


def test_mask_in_training_only():
    given_over = BY_NAME["mask in training only"].make()["forward"]
    assert given_over.training  # whoever looks at it as it comes sees nothing
    assert moved_by_the_future(given_over) < ROUNDING
    assert moved_by_the_future(given_over.eval()) > CLEAR


def test_buckets_sorted_over_the_future():
    model = made("buckets sorted over the future")["forward"]
    assert moved_by_the_future(model) > CLEAR
    assert gradient_from_the_future(model, model.embed) == 0
    leaking = made("off-by-one mask")["forward"]
    assert gradient_from_the_future(leaking, leaking.embed) > 0  # the gradient does see that one


def test_padding_seen():
    arguments = made("padding seen")
    assert moved_by_padding(arguments["padded"], arguments["forward"]) > CLEAR
    assert moved_by_padding(ENCODER.padded, ENCODER) < ROUNDING


def test_positions_counted_from_the_padding():
    arguments = made("positions counted from the padding")
    assert moved_by_padding(arguments["padded"], arguments["forward"]) > CLEAR
    assert moved_by_padding(PLAIN.padded, PLAIN) < ROUNDING


def test_experts_with_too_few_seats():
    model = made("experts with too few seats")["forward"]
    assert moved_by_neighbours(model) > CLEAR
    assert moved_by_neighbours(lively(RoomyBatch()).eval()) < ROUNDING
    assert moved_by_the_future(model) < ROUNDING


def test_packed_documents_see_each_other():
    assert moved_by_packing(made("packed documents see each other")["model"]) > CLEAR
    assert moved_by_packing(lively(small().build())) < ROUNDING


def test_cache_off_by_one():
    pieces = [6, *[1] * 18]
    assert moved_by_steps(made("cache off by one")["model"], pieces) > CLEAR
    assert moved_by_steps(lively(small().build()), pieces) < ROUNDING


def test_causal_square_in_the_wrong_corner():
    model = made("causal square in the wrong corner")["model"]
    assert moved_by_steps(model, [6, 5, 13]) > CLEAR
    assert moved_by_steps(model, [6, *[1] * 18]) < ROUNDING
    assert moved_by_steps(lively(small().build()), [6, 5, 13]) < ROUNDING


def test_window_wider_once_the_cache_rolls():
    model = made("window wider once the cache rolls")["model"]
    assert moved_by_steps(model, [1] * LONG) > CLEAR
    assert moved_by_steps(model, [1] * 12) < ROUNDING
    assert moved_by_steps(lively(small(attention=WINDOW, context=LONG).build()), [1] * LONG) < ROUNDING


def test_blind_rows_are_nan():
    model, lengths = made("blind rows are NaN")["forward"], torch.tensor([3, 24, 11, 17])
    real = torch.arange(LENGTH) < lengths[:, None]
    assert model.padded(tokens(), lengths)[real].isnan().any()
    assert PLAIN.padded(tokens(), lengths)[real].isfinite().all()
    assert model(tokens()).isfinite().all()  # without padding there is nothing to see


def test_positions_thrown_away():
    assert moved_by_order(made("positions thrown away")["forward"]) < ROUNDING
    assert moved_by_order(ENCODER) > CLEAR


def test_shared_heads_tiled():
    model, text = made("shared heads tiled")["model"], tokens()
    twin = lively(small(kv_heads=2).build()).eval()
    assert far(model(text), twin(text)) > CLEAR
    for block in model.blocks:
        block.attention.mechanism.backend = "reference"
    assert far(model(text), twin(text)) < ROUNDING


def test_tokenizer_loses_characters():
    tokenizer, known, unknown = made("tokenizer loses characters")["tokenizer"], "a bad", "a bad Ω"
    assert tokenizer.decode(tokenizer.encode(known)) == known
    assert tokenizer.decode(tokenizer.encode(unknown)) == "a bad "
    with pytest.raises(UserError):
        Characters(ALPHABET).encode(unknown)


def follows(batch: TextBatch) -> bool:
    """Whether each counted target is the input after its own, if that one counts too: behind it may be padding."""
    counted = (batch.targets[:, :-1] >= 0) & (batch.targets[:, 1:] >= 0)
    return bool((batch.targets[:, :-1] == batch.inputs[:, 1:])[counted].all())


def test_labels_unshifted():
    batch = made("labels unshifted")["data"].batch(0, seed=1, size=4)
    assert torch.equal(batch.inputs, batch.targets)
    assert not follows(batch)
    for data in (text_data(TextData, LENGTH), Sentences(LENGTH)):
        assert follows(data.batch(0, seed=1, size=4))
        assert all(follows(one) for one in data.validation_batches(5))


def loss(model: Any, task: Any, batches: list[TextBatch]) -> float:
    """The loss as the trainer takes it: all sums over all counts."""
    terms = [task.terms(model, batch)["next_token"] for batch in batches]
    return float(sum(term.total for term in terms) / sum(term.count for term in terms))


@torch.no_grad()
def test_mean_of_means():
    arguments = made("mean of means")
    model, data = arguments["model"], arguments["data"]
    big, halves = [data.batch(0, seed=1, size=8)], [data.batch(i, seed=1, size=4) for i in range(2)]
    assert torch.equal(big[0].inputs, torch.cat([half.inputs for half in halves]))
    task = arguments["task"]
    assert abs(loss(model, task, big) - loss(model, task, halves)) > CLEAR
    assert loss(model, Language(), big) == pytest.approx(loss(model, Language(), halves), abs=ROUNDING)
    assert loss(model, task, big) == pytest.approx(loss(model, Language(), big), abs=ROUNDING)


def shared(data: Any, length: int) -> float:
    """The share of the held-out runs of ``length`` tokens that training meets in 200 batches."""

    def runs(batch: TextBatch) -> set[tuple[int, ...]]:
        return {tuple(run) for run in batch.inputs.unfold(1, length, 1).flatten(0, 1).tolist()}

    trained = set().union(*(runs(data.batch(step, seed=1, size=16)) for step in range(200)))
    held_out = set().union(*(runs(batch) for batch in data.validation_batches(4)))
    return len(held_out & trained) / len(held_out)


def test_windows_shuffled_then_split():
    data = made("windows shuffled, then split")["data"]
    assert shared(data, LENGTH) < 0.5  # whole windows are not the way to see it
    assert shared(data, 12) > 0.9
    assert shared(text_data(TextData, LENGTH), 12) < 0.01


def reloaded(model: Any) -> Any:
    again = model.config.build()
    again.load_state_dict(model.state_dict())
    return again.eval()


def test_checkpoint_forgets_a_buffer():
    model, text = made("checkpoint forgets a buffer")["model"], tokens()
    assert far(model(text), reloaded(model)(text)) > CLEAR
    twin = cast(torch.nn.Module, corrected(kept=True)["model"]).eval()
    assert far(twin(text), reloaded(twin)(text)) < ROUNDING


@torch.no_grad()
def test_cap_lost_in_export():
    text = tokens()
    model, twin = made("cap lost in export")["model"], lively(small(cap=2.0).build()).eval()
    exported, kept = (torch.export.export(one, (text,)).module() for one in (model, twin))
    assert far(exported(text), model(text)) > CLEAR
    assert far(kept(text), twin(text)) < ROUNDING


def test_there_are_twenty_faults_that_cover_every_claim_and_a_check_of_each():
    assert len(FAULTS) == len(BY_NAME) == 20
    assert {fault.claim for fault in FAULTS} == {*CLAIMS.split(), "export"}
    checks = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert all(name.lower().replace(",", "").replace("-", "_").replace(" ", "_") in checks for name in BY_NAME)


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_sound_models_run_and_keep_the_future_hidden(healthy):
    arguments = healthy.make()
    forward: Any = arguments.get("model", arguments.get("forward")).eval()
    assert forward(tokens()).shape == (4, LENGTH, VOCABULARY)
    again: Any = healthy.make()
    assert torch.equal(forward(tokens()), again.get("model", again.get("forward")).eval()(tokens()))
    assert (moved_by_the_future(forward) < ROUNDING) == arguments.get("causal", True)
    if "model" in arguments:
        assert moved_by_steps(forward, [6, 5, *[1] * 13]) < ROUNDING
        assert moved_by_packing(forward) < ROUNDING
        assert far(forward(tokens()), reloaded(forward)(tokens())) < ROUNDING
    if "padded" in arguments:
        assert moved_by_padding(arguments["padded"], forward) < ROUNDING
    assert moved_by_neighbours(forward) < ROUNDING
