"""A mask one can see: the picture shows each pair as it is, and never hides one."""

from __future__ import annotations

import base64
import doctest
import re
import xml.etree.ElementTree as ET

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from regard.attention import Blocks, Causal, Edges, Full, Mask, Same, Spans, Window, attend
from regard.attention.masks import picture
from regard.attention.masks.expression import parse
from regard.attention.masks.picture import (
    EMPTY,
    FULL,
    PARTIAL,
    SHADES,
    draw_mask,
    layout,
    mask_svg,
    pooled,
    view,
)
from regard.errors import UserError

EXPRESSIONS = [
    "causal",
    "full",
    "causal & window(5)",
    "causal & window(3) | prefix(2)",
    "~causal & strided(3)",
    "causal & (dilated(3, 4) | global(0, 7))",
    "window(4, 2) & ~window(2)",
]
expressions = st.sampled_from(EXPRESSIONS).map(parse)
SPACE = {"s": "http://www.w3.org/2000/svg"}


def seen_pairs(mask: Mask, length: int) -> torch.Tensor:
    """By the operator itself: who gets weight."""
    flat = torch.zeros(length, 1, dtype=torch.float64)
    weights = attend(flat, flat, flat, mask, weights=True).weights
    assert weights is not None
    return weights > 0


@given(expressions, st.integers(1, 45), st.integers(1, 12), st.integers(1, 20))
def test_counts_and_layout_are_those_of_the_pairs(mask: Mask, length: int, block: int, most: int) -> None:
    pairs, found = seen_pairs(mask, length), view(mask, length, block=block, most=most)
    assert found.allowed == int(pairs.sum())
    assert found.share.shape[0] <= most
    needed = 0
    for i, row in enumerate(found.layout.tolist()):
        for j, kind in enumerate(row):
            tile = pairs[i * block : (i + 1) * block, j * block : (j + 1) * block]
            needed += bool(tile.any())
            assert kind != EMPTY or not tile.any(), "a tile with an allowed pair is skipped"
            assert kind != FULL or tile.all(), "a tile with a hidden pair is computed without the mask"
    assert found.needed == needed <= found.computed
    for i, row in enumerate(found.share.tolist()):
        for j, share in enumerate(row):
            cell = pairs[i * found.cell : (i + 1) * found.cell, j * found.cell : (j + 1) * found.cell]
            assert share == pytest.approx(float(cell.double().mean()))


@given(expressions, st.integers(1, 40))
def test_each_pair_has_its_character(mask: Mask, length: int) -> None:
    lines = draw_mask(mask, length, width=200).splitlines()[3 : 3 + length]
    shown = [[line[2 * j : 2 * j + 2] == SHADES[4] for j in range(length)] for line in lines]
    assert shown == seen_pairs(mask, length).tolist()


@given(expressions, st.integers(1, 60))
def test_the_picture_is_as_dark_as_the_mask(mask: Mask, length: int) -> None:
    """The area that is inked, by the strength of the ink, is the share of the pairs."""
    root = ET.fromstring(mask_svg(mask, length, block=7))
    pairs = root.findall("s:g", SPACE)[0]
    area = 0.0
    for path in pairs.findall("s:path", SPACE):
        if path.get("class") == "ink":
            runs = re.findall(r"h([\d.]+)v([\d.]+)", path.get("d", ""))
            area += sum(float(w) * float(h) for w, h in runs) * float(path.get("fill-opacity", "1"))
    assert area / 512**2 == pytest.approx(view(mask, length).allowed / length**2, rel=0.02, abs=1e-3)


@pytest.mark.parametrize("length", [1, 2, 129, 1000, 4096])
def test_a_picture_of_any_length_is_legible_and_tells_what_it_shows(length: int) -> None:
    mask = Causal() & Window(300)
    text = mask_svg(mask, length, block=16)
    assert len(text) < 200_000
    root = ET.fromstring(text)
    assert root.find("s:title", SPACE).text.startswith("causal & window(300), ")  # type: ignore[union-attr]
    assert "pairs are allowed" in root.find("s:desc", SPACE).text  # type: ignore[union-attr, operator]
    assert "prefers-color-scheme:dark" in root.find("s:style", SPACE).text  # type: ignore[union-attr, operator]
    assert view(mask, length).share.shape[0] <= 128


def test_a_long_text_is_pooled_and_nothing_is_lost() -> None:
    mask = parse("window(1)")  # one pair a row: the thinnest line there is
    shown = draw_mask(mask, 1000, width=60).splitlines()[3:33]
    assert all(line[2 * i : 2 * i + 2] in SHADES[1:] for i, line in enumerate(shown))
    tiles = torch.zeros(9, 9, dtype=torch.int32)
    tiles[8, 8] = FULL
    assert pooled(tiles, 4).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, PARTIAL]]


def test_the_words_say_what_is_computed_and_by_whom() -> None:
    text = draw_mask(Causal() & Window(8), 32, block=8)
    assert "228 of 1,024 pairs are allowed (22.3%)" in text
    assert "7 of 16 tiles of 8 tokens are computed (43.8%): 0 full, 7 partial, 9 skipped" in text
    assert "backend here: " in text
    assert "the block bounds are loose" in draw_mask(parse("strided(16)"), 32, block=4)
    assert draw_mask(Full(), 4, ascii=True).isascii()
    assert layout(Full(), 5, 2).tolist() == [[FULL] * 3] * 3


def test_the_example_in_the_docstring_is_true() -> None:
    assert doctest.testmod(picture) == (0, 2)


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(UserError, match="1 to 16,384 tokens, not 0"):
        view(Causal(), 0)
    with pytest.raises(UserError, match="at least 1 token"):
        view(Causal(), 4, block=0)
    with pytest.raises(UserError, match="choose a shorter length"):
        view(Same(torch.tensor([0, 1])), 3)


@pytest.mark.parametrize(
    ("mask", "tokens"),
    [
        (Causal() & Window(8), 32),
        (Same(torch.arange(5) // 2) | Causal(), 5),
        (Edges(torch.ones(2, 3, 7, 9).bool()), 7),
        (Blocks(torch.eye(3).bool(), 4), 12),
    ],
)
def test_masks_draw_themselves_in_a_notebook(mask: Mask, tokens: int) -> None:
    html = mask._repr_html_()
    assert html is not None
    shown = re.fullmatch(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="[^"<>]+" style="[^"]+">', html)
    assert shown is not None
    drawn = base64.b64decode(shown[1]).decode()
    assert drawn == mask_svg(mask, tokens)
    ET.fromstring(drawn)


def test_a_mask_that_follows_from_the_tokens_has_no_picture() -> None:
    assert Spans((3,))._repr_html_() is None
