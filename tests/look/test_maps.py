"""Maps: overviews, tiles and rollout equal those of the dense weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from session_kit import TEXT, dense, gpt, traced

from regard.attention import (
    WindowConfig,
)
from regard.errors import UserError


@pytest.mark.parametrize("name", ["plain", "window", "longformer", "grouped", "transformer", "bahdanau"])
def test_pictures_hold_the_greatest_weight_of_each_tile(name):
    _, trace = traced(name)
    size = 9
    found, ready = trace.overview(size)
    assert ready == len(trace.attentions)
    for number, one in enumerate(trace.attentions):
        weights = dense(one)
        (h, q, k), sides = weights.shape, [-(-n // size) for n in weights.shape[1:]]
        pieces = [[part.amax((1, 2)) for part in row.split(sides[1], 2)] for row in weights.split(sides[0], 1)]
        wanted = torch.stack([torch.stack(row, -1) for row in pieces], 1)
        picture = found[number, :h, : wanted.shape[1], : wanted.shape[2]]
        np.testing.assert_allclose(picture, (255 * wanted.sqrt()).round().numpy(), atol=1)
        assert found[number, :, wanted.shape[1] :].max(initial=0) == 0
        whole = trace.tile(number, h - 1, 0, 0, 0)
        assert whole.shape == (q, k)
        np.testing.assert_allclose(whole, (255 * weights[-1].sqrt()).round().numpy(), atol=1)


def test_tiles_of_a_long_text_fit_together():
    """Three levels of 700 tokens; each cell is the greatest of the four below it."""
    session = gpt(layers=1, width=8, heads=2, context=1024, attention=WindowConfig(90, sinks=1))
    trace = session.trace((TEXT + "\n") * 16)
    length = len(trace.tokens)
    assert length == 704
    weights = dense(trace.attentions[0])[1]
    finest = np.block([[trace.tile(0, 1, 0, r, c) for c in range(3)] for r in range(3)])
    np.testing.assert_allclose(finest, (255 * weights.sqrt()).round().numpy(), atol=1)
    for level in (1, 2):
        finest = np.pad(finest, ((0, finest.shape[0] % 2), (0, finest.shape[1] % 2)))
        finest = finest.reshape(finest.shape[0] // 2, 2, finest.shape[1] // 2, 2).max((1, 3))
        count = -(-finest.shape[0] // 256)
        drawn = np.block([[trace.tile(0, 1, level, r, c) for c in range(count)] for r in range(count)])
        np.testing.assert_allclose(drawn, finest, atol=1)
    with pytest.raises(UserError, match="levels 0 to 2"):
        trace.tile(0, 1, 3, 0, 0)
    with pytest.raises(UserError, match="row is 0 to 2"):
        trace.tile(0, 1, 0, 3, 0)


def test_an_overview_comes_layer_by_layer():
    trace = gpt(layers=3).trace(TEXT)
    whole = gpt(layers=3).trace(TEXT).overview(16)[0]
    for wanted in (1, 2, 3, 3):
        found, ready = trace.overview(16, seconds=0)
        assert ready == wanted
        assert np.array_equal(found[:ready], whole[:ready])
        assert not found[ready:].any()


@pytest.mark.parametrize("size", [256, 10])
def test_rollout_is_the_product_of_the_layers(size):
    _, trace = traced("plain")
    length = len(trace.tokens)
    wanted = torch.eye(length)
    for one in trace.attentions:
        wanted = (dense(one).mean(0) + torch.eye(length)) / 2 @ wanted
    each = -(-length // size)
    rows_ = torch.stack([part.mean(0) for part in wanted.split(each)])
    wanted = torch.stack([part.sum(1) for part in rows_.split(each, 1)], 1)
    found = trace.rollout(size)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
