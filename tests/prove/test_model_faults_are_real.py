"""Each fault of a model has the effect that it names, and its sound twin does not: measured by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fault_effects import (
    CLEAR,
    ROUNDING,
    far,
    gradient_from_the_future,
    gradients,
    moved_by_documents,
    moved_by_length,
    moved_by_neighbours,
    moved_by_order,
    moved_by_packing,
    moved_by_padding,
    moved_by_steps,
    moved_by_the_far_future,
    moved_by_the_future,
    reloaded,
    tokens,
)
from fault_kit import KERNEL, LONG, WINDOW, corrected, small
from faults import FAULTS_BY_NAME, made
from faulty_layers import RowsForTime, SteadyRotary
from faulty_torch import LENGTH, Plain, RoomyBatch, randomized

PLAIN, ENCODER = randomized(Plain()).eval(), randomized(Plain(causal=False)).eval()


def test_off_by_one_mask():
    forward = made("off-by-one mask").forward
    assert moved_by_the_future(forward) > CLEAR
    assert moved_by_the_far_future(forward) < ROUNDING  # one token ahead in each of two layers, and no further
    assert moved_by_the_future(PLAIN) < ROUNDING


def test_mask_lost_when_weights_are_asked_for():
    forward = made("mask lost when weights are asked for").forward
    assert moved_by_the_future(forward) > CLEAR
    assert moved_by_the_future(PLAIN) < ROUNDING


def test_mask_in_training_only():
    given_over: Any = FAULTS_BY_NAME["mask in training only"].make().forward
    assert given_over.training  # in training mode there is no leak
    assert moved_by_the_future(given_over) < ROUNDING
    assert moved_by_the_future(given_over.eval()) > CLEAR


def test_buckets_sorted_over_the_future():
    model = made("buckets sorted over the future").forward
    assert moved_by_the_future(model) > CLEAR
    assert gradient_from_the_future(model, model.embed) == 0
    leaking = made("off-by-one mask").forward
    assert gradient_from_the_future(leaking, leaking.embed) > 0  # the gradient does see that one


def test_padding_seen():
    subject = made("padding seen")
    assert moved_by_padding(subject.padded, subject.forward) > CLEAR
    assert moved_by_padding(ENCODER.padded, ENCODER) < ROUNDING


def test_positions_counted_from_the_padding():
    subject = made("positions counted from the padding")
    assert moved_by_padding(subject.padded, subject.forward) > CLEAR
    assert moved_by_padding(PLAIN.padded, PLAIN) < ROUNDING


def test_experts_with_too_few_seats():
    model = made("experts with too few seats").forward
    assert moved_by_neighbours(model) > CLEAR
    assert moved_by_neighbours(randomized(RoomyBatch()).eval()) < ROUNDING
    assert moved_by_the_future(model) < ROUNDING


def test_packed_documents_see_each_other():
    assert moved_by_packing(made("packed documents see each other").model) > CLEAR
    assert moved_by_packing(randomized(small().build())) < ROUNDING


def test_cache_off_by_one():
    pieces = [6, *[1] * 18]
    assert moved_by_steps(made("cache off by one").model, pieces) > CLEAR
    assert moved_by_steps(randomized(small().build()), pieces) < ROUNDING


def test_causal_square_in_the_wrong_corner():
    model = made("causal square in the wrong corner").model
    assert moved_by_steps(model, [6, 5, 13]) > CLEAR
    assert moved_by_steps(model, [6, *[1] * 18]) < ROUNDING
    assert moved_by_steps(randomized(small().build()), [6, 5, 13]) < ROUNDING


def test_window_wider_once_the_cache_rolls():
    model = made("window wider once the cache rolls").model
    assert moved_by_steps(model, [1] * LONG) > CLEAR
    assert moved_by_steps(model, [1] * 12) < ROUNDING
    assert moved_by_steps(randomized(small(attention=WINDOW, context=LONG).build()), [1] * LONG) < ROUNDING


def test_blind_rows_are_nan():
    model, lengths = made("blind rows are NaN").forward, torch.tensor([3, 24, 11, 17])
    real = torch.arange(LENGTH) < lengths[:, None]
    assert model.padded(tokens(), lengths)[real].isnan().any()
    assert PLAIN.padded(tokens(), lengths)[real].isfinite().all()
    assert model(tokens()).isfinite().all()  # without padding there is nothing to see


def test_positions_thrown_away():
    assert moved_by_order(made("positions thrown away").forward) < ROUNDING
    assert moved_by_order(ENCODER) > CLEAR


def test_shared_heads_tiled():
    model, text = made("shared heads tiled").model, tokens()
    twin = randomized(small(kv_heads=2).build()).eval()
    assert far(model(text), twin(text)) > CLEAR
    for block in model.blocks:
        block.attention.mechanism.backend = "reference"
    assert far(model(text), twin(text)) < ROUNDING


def test_checkpoint_forgets_a_buffer():
    model, text = made("checkpoint forgets a buffer").model, tokens()
    assert far(model(text), reloaded(model)(text)) > CLEAR
    twin: Any = corrected(kept=True).model.eval()  # type: ignore[union-attr]
    assert far(twin(text), reloaded(twin)(text)) < ROUNDING


@torch.no_grad()
def test_cap_lost_in_export():
    text = tokens()
    model, twin = made("cap lost in export").model, randomized(small(cap=2.0).build()).eval()
    exported, kept = (torch.export.export(one, (text,)).module() for one in (model, twin))
    assert far(exported(text), model(text)) > CLEAR
    assert far(kept(text), twin(text)) < ROUNDING


def test_rotary_base_grows_with_the_text():
    model = made("rotary base grows with the text").forward
    assert moved_by_length(model, LENGTH) > CLEAR
    assert moved_by_length(model, 16) < ROUNDING
    assert moved_by_the_future(model) < ROUNDING  # which tokens follow does not matter, only how many
    assert moved_by_length(randomized(SteadyRotary()).eval(), LENGTH) < ROUNDING
    assert moved_by_neighbours(model) < ROUNDING


def test_batch_norm_over_time():
    model = made("batch norm over time").forward
    assert moved_by_the_future(model) < ROUNDING
    assert moved_by_neighbours(model) < ROUNDING
    assert moved_by_the_future(model.train()) > CLEAR
    assert moved_by_the_future(lambda text: model(text[:1])) > CLEAR  # and not by way of other rows
    assert moved_by_the_future(randomized(Plain()).train()) < ROUNDING


def test_masks_of_other_rows():
    subject = made("masks of other rows")
    padded, forward = subject.padded, subject.forward
    assert moved_by_padding(padded, forward) > CLEAR
    assert moved_by_padding(ENCODER.padded, ENCODER) < ROUNDING
    assert far(forward(tokens()), ENCODER(tokens())) < ROUNDING
    alike, one = tokens(), torch.full((4,), 11)  # rows of one length, or a row alone: nothing to mix up
    assert far(padded(alike, one)[:, :11], forward(alike[:, :11])) < ROUNDING
    assert far(padded(alike[:1], one[:1])[:, :11], forward(alike[:1, :11])) < ROUNDING


def test_rows_taken_for_time():
    model, twin = made("rows taken for time").forward, randomized(RowsForTime(batch_first=True)).eval()
    assert moved_by_neighbours(model) > CLEAR
    assert moved_by_neighbours(twin) < ROUNDING
    assert min(moved_by_order(model), moved_by_order(twin)) > CLEAR


def test_one_token_documents_run_into_the_next():
    model, twin = made("one-token documents run into the next").model, randomized(small().build()).eval()
    assert moved_by_documents(model, [5, 1, 9, 9]) > CLEAR
    assert moved_by_documents(model, [5, 2, 8, 9]) < ROUNDING
    assert moved_by_documents(model, [5, 9, 9, 1]) < ROUNDING  # nothing follows it
    assert moved_by_documents(twin, [5, 1, 9, 9]) < ROUNDING
    assert moved_by_steps(model, [6, 5, *[1] * 13]) < ROUNDING


@pytest.mark.parametrize("short", [2, 3])
def test_short_pieces_wipe_the_past(short):
    model, pieces = made("short pieces wipe the past").model, [6, short, *[1] * (18 - short)]
    assert moved_by_steps(model, pieces) > CLEAR
    assert moved_by_steps(randomized(KERNEL.build()).eval(), pieces) < ROUNDING
    assert moved_by_steps(model, [short, 4, *[1] * (20 - short)]) < ROUNDING  # at the start there is no past
    assert moved_by_steps(model, [6, 5, 13]) < ROUNDING
    assert moved_by_steps(model, [1] * LENGTH) < ROUNDING
    assert max(moved_by_packing(model), moved_by_the_future(model)) < ROUNDING


def test_scale_lost_backward():
    model = made("scale lost backward").model
    (logits, slope), (sound, sound_slope) = gradients(model), gradients(randomized(small().build()).eval())
    assert far(logits, sound) < ROUNDING
    assert far(slope, sound_slope) > CLEAR * float(sound_slope.abs().max())
    with torch.no_grad():
        assert far(torch.export.export(model, (tokens(),)).module()(tokens()), sound) < ROUNDING
    assert far(reloaded(model)(tokens()), sound) < ROUNDING
    for block in model.blocks:
        block.attention.mechanism.backend = "reference"
    assert far(gradients(model)[1], sound_slope) < ROUNDING
