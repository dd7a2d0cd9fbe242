"""Each of the unseen faults does what it says, and its sound twin does not: seen by hand, fault by fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fault_data import Sentences
from fault_torch import LENGTH, Plain, lively
from faults import FAULTS, small
from test_faults_are_real import (
    CLEAR,
    ENCODER,
    ROUNDING,
    Forward,
    far,
    follows,
    loss,
    moved_by_neighbours,
    moved_by_order,
    moved_by_packing,
    moved_by_padding,
    moved_by_steps,
    moved_by_the_future,
    reloaded,
    tokens,
)
from torch import Tensor
from torch.nn import functional as F
from unseen import KERNEL, UNSEEN
from unseen_models import RowsForTime, SteadyRotary

from regard.attention import Packed
from regard.data import Bytes, TextBatch
from regard.tasks import Language

BY_NAME = {fault.name: fault for fault in UNSEEN}


def made(name: str) -> dict[str, Any]:
    arguments = BY_NAME[name].make()
    for key in ("model", "forward"):
        if isinstance(module := arguments.get(key), torch.nn.Module):
            module.eval()
    return arguments


@torch.no_grad()
def moved_by_length(forward: Forward, length: int) -> float:
    """How far the logits of a text's beginning move when the text goes on to ``length`` tokens, at worst."""
    text = tokens()[:, :length]
    return max(far(forward(text)[:, :n], forward(text[:, :n])) for n in range(1, length))


@torch.no_grad()
def moved_by_documents(model: Any, lengths: list[int]) -> float:
    """How far the logits of documents packed into one row are from those of each alone."""
    text = tokens(1, sum(lengths))
    alone = torch.cat([model(piece) for piece in text.split(lengths, dim=1)], dim=1)
    return far(model(text, Packed.of([lengths])), alone)


def test_rotary_base_grows_with_the_text():
    model = made("rotary base grows with the text")["forward"]
    assert moved_by_length(model, LENGTH) > CLEAR
    assert moved_by_length(model, 16) < ROUNDING
    assert moved_by_the_future(model) < ROUNDING  # which tokens follow does not matter, only how many
    assert moved_by_length(lively(SteadyRotary()).eval(), LENGTH) < ROUNDING
    assert moved_by_neighbours(model) < ROUNDING


def test_batch_norm_over_time():
    model = made("batch norm over time")["forward"]
    assert moved_by_the_future(model) < ROUNDING
    assert moved_by_neighbours(model) < ROUNDING
    assert moved_by_the_future(model.train()) > CLEAR
    assert moved_by_the_future(lambda text: model(text[:1])) > CLEAR  # and not by way of other rows
    assert moved_by_the_future(lively(Plain()).train()) < ROUNDING


def test_masks_of_other_rows():
    arguments = made("masks of other rows")
    padded, forward = arguments["padded"], arguments["forward"]
    assert moved_by_padding(padded, forward) > CLEAR
    assert moved_by_padding(ENCODER.padded, ENCODER) < ROUNDING
    assert far(forward(tokens()), ENCODER(tokens())) < ROUNDING
    alike, one = tokens(), torch.full((4,), 11)  # rows of one length, or a row alone: nothing to mix up
    assert far(padded(alike, one)[:, :11], forward(alike[:, :11])) < ROUNDING
    assert far(padded(alike[:1], one[:1])[:, :11], forward(alike[:1, :11])) < ROUNDING


def test_rows_taken_for_time():
    model, twin = made("rows taken for time")["forward"], lively(RowsForTime(batch_first=True)).eval()
    assert moved_by_neighbours(model) > CLEAR
    assert moved_by_neighbours(twin) < ROUNDING
    assert min(moved_by_order(model), moved_by_order(twin)) > CLEAR


def test_one_token_documents_run_into_the_next():
    model, twin = made("one-token documents run into the next")["model"], lively(small().build()).eval()
    assert moved_by_documents(model, [5, 1, 9, 9]) > CLEAR
    assert moved_by_documents(model, [5, 2, 8, 9]) < ROUNDING
    assert moved_by_documents(model, [5, 9, 9, 1]) < ROUNDING  # nothing follows it
    assert moved_by_documents(twin, [5, 1, 9, 9]) < ROUNDING
    assert moved_by_steps(model, [6, 5, *[1] * 13]) < ROUNDING


@pytest.mark.parametrize("short", [2, 3])
def test_short_pieces_wipe_the_past(short):
    model, pieces = made("short pieces wipe the past")["model"], [6, short, *[1] * (18 - short)]
    assert moved_by_steps(model, pieces) > CLEAR
    assert moved_by_steps(lively(KERNEL.build()).eval(), pieces) < ROUNDING
    assert moved_by_steps(model, [short, 4, *[1] * (20 - short)]) < ROUNDING  # at the start there is no past
    assert moved_by_steps(model, [6, 5, 13]) < ROUNDING
    assert moved_by_steps(model, [1] * LENGTH) < ROUNDING
    assert max(moved_by_packing(model), moved_by_the_future(model)) < ROUNDING


def gradients(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """The logits, and the gradients of all weights one after the other."""
    logits = model(tokens())
    found = torch.autograd.grad(logits.square().mean(), [*model.parameters()])
    return logits, torch.cat([gradient.flatten() for gradient in found])


def test_scale_lost_backward():
    model = made("scale lost backward")["model"]
    (logits, slope), (sound, sound_slope) = gradients(model), gradients(lively(small().build()).eval())
    assert far(logits, sound) < ROUNDING
    assert far(slope, sound_slope) > CLEAR * float(sound_slope.abs().max())
    with torch.no_grad():
        assert far(torch.export.export(model, (tokens(),)).module()(tokens()), sound) < ROUNDING
    assert far(reloaded(model)(tokens()), sound) < ROUNDING
    for block in model.blocks:
        block.attention.mechanism.backend = "reference"
    assert far(gradients(model)[1], sound_slope) < ROUNDING


def test_spaces_cleaned_up():
    tokenizer, sound, text = made("spaces cleaned up")["tokenizer"], Bytes(), "Who 's there ? Nay , answer me ."
    assert tokenizer.decode(tokenizer.encode(text)) == "Who's there? Nay, answer me."
    assert sound.decode(sound.encode(text)) == text
    usual = "Who's there?\n\tNay, answer me:  stand — and unfold yourself."
    assert tokenizer.decode(tokenizer.encode(usual)) == usual


@torch.no_grad()
def test_shifted_twice():
    arguments = made("shifted twice")
    model, task, batch = arguments["model"], arguments["task"], arguments["data"].batch(0, seed=1, size=8)
    assert follows(batch)  # the data are sound
    logits = model(batch.inputs)
    found, right = loss(model, task, [batch]), float(F.cross_entropy(logits.transpose(1, 2), batch.targets))
    late = float(F.cross_entropy(logits[:, :-1].transpose(1, 2), batch.targets[:, 1:]))
    assert found == pytest.approx(late, abs=ROUNDING)
    assert abs(found - right) > CLEAR
    assert loss(model, Language(), [batch]) == pytest.approx(right, abs=ROUNDING)
    halves = [TextBatch(*pair) for pair in zip(batch.inputs.split(4), batch.targets.split(4), strict=True)]
    assert loss(model, task, halves) == pytest.approx(found, abs=ROUNDING)


def trained_on(data: Any, rows: range) -> int:
    """How many of the held-out rows are among these rows of training, tokens and targets alike."""

    def all_of(batches: Any) -> set[tuple[int, ...]]:
        return {tuple(row) for batch in batches for row in torch.cat((batch.inputs, batch.targets), dim=1).tolist()}

    return len(all_of(data.batch(i, seed=1, size=1) for i in rows) & all_of(data.validation_batches(4)))


def test_second_round_over_all_rows():
    data = made("second round over all rows")["data"]
    assert trained_on(data, range(64)) == 0  # whoever looks at the beginning sees nothing
    assert trained_on(data, range(64, 96)) == 32
    assert trained_on(Sentences(LENGTH), range(200)) == 0


def test_there_are_ten_of_them_none_of_the_twenty_and_a_check_of_each():
    assert len(UNSEEN) == len(BY_NAME) == 10
    assert not {*BY_NAME} & {fault.name for fault in FAULTS}
    claims = {fault.claim for fault in UNSEEN}
    assert claims <= {fault.claim for fault in FAULTS}
    assert len(claims) == 9
    checks = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert all(name.replace("-", "_").replace(" ", "_") in checks for name in BY_NAME)
