"""Alignments: the weights that mixed the memory, joined to words, and drawn for terminals and as pictures."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import Softmax
from regard.data import BpeConfig
from regard.data.translation.pairs import Specials
from regard.errors import UserError
from regard.look.pictures.align import (
    SHADES,
    Alignment,
    HeadMap,
    align,
    check,
    draw,
    figure,
    merge_tokens,
    over_source,
    page,
    save,
    split_words,
    svg,
)
from regard.models import Seq2SeqConfig, TransformerConfig
from regard.models.bridges import BahdanauConfig, FixedConfig, LuongConfig

TEXT = "the light in the kitchen is on and the light in the garden is off; la lumière du jardin est éteinte. " * 3
TOKENIZER = BpeConfig(vocabulary=300).build([TEXT])
MARKS = Specials.after(TOKENIZER.size)
SOURCE, TARGET = "the light is on", "la lumière est là"


def models():
    sizes: dict[str, Any] = {"vocabulary": TOKENIZER.size + 3, "context": 64, "width": 16}
    torch.manual_seed(1)
    yield "transformer", TransformerConfig(**sizes, layers=2, decoder_layers=3, heads=2).build(), 6
    yield "bahdanau", Seq2SeqConfig(**sizes, attention=BahdanauConfig()).build(), 1
    yield "luong", Seq2SeqConfig(**sizes, attention=LuongConfig()).build(), 1
    yield "luong at once", Seq2SeqConfig(**sizes, attention=LuongConfig(feeding=False)).build(), 1


MODELS = {name: (model, maps) for name, model, maps in models()}


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_every_head_over_the_source_is_found_and_a_row_is_one(name):
    model, maps = MODELS[name]
    found = align(model, TOKENIZER, MARKS, [*tokens(SOURCE), MARKS.end], tokens(TARGET))
    assert found.source == [*SOURCE.split(), "<end>"]
    assert found.target == [*TARGET.split(), "<end>"]
    assert len(found.maps) == maps
    for one in found.maps:
        assert one.weights.shape == (5, 5)
        torch.testing.assert_close(one.weights.sum(1), torch.ones(5))
    again = align(model, TOKENIZER, MARKS, [*tokens(SOURCE), MARKS.end], [*tokens(TARGET), MARKS.end])
    torch.testing.assert_close(again.mean, found.mean)


@pytest.mark.parametrize("name", ["bahdanau", "luong", "transformer"])
def test_the_weights_are_those_that_mixed_the_memory(name):
    """weights @ values is what came out of the mechanism, step by step or at once."""
    model, _ = MODELS[name]
    model.eval()
    mixed, values = [], []
    last = [module for module in model.modules() if isinstance(module, Softmax)][-1]

    def note(_, inputs, out):
        mixed.append(out.values)
        values.append(inputs[2])

    source, inputs = [*tokens(SOURCE), MARKS.end], torch.tensor([[MARKS.begin, *tokens(TARGET)]])
    hook = last.register_forward_hook(note)
    try:
        weights = over_source(model, inputs, torch.tensor([source]), torch.tensor([len(source)]))[-1]
    finally:
        hook.remove()
    torch.testing.assert_close(weights @ values[0][0], torch.cat(mixed, 2)[0], atol=1e-5, rtol=1e-5)


def test_a_model_without_attention_is_refused():
    model = Seq2SeqConfig(vocabulary=TOKENIZER.size + 3, width=16, attention=FixedConfig()).build()
    with pytest.raises(UserError, match="no attention over the source"):
        align(model, TOKENIZER, MARKS, [1, MARKS.end], [2])


@given(st.text(alphabet="ab é,漢 ", max_size=30))
def test_words_hold_every_token_and_spell_the_text(text):
    ids = tokens(text)
    found = split_words(TOKENIZER, MARKS, [*ids, MARKS.end])
    assert sum(count for _, count in found) == len(ids) + 1
    assert found[-1] == ("<end>", 1)
    assert [word for word, _ in found[:-1] if word != "␣"] == text.split()


@given(st.data())
def test_joining_keeps_the_mass(data):
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    written, read = ([("w", n) for n in data.draw(sizes)] for _ in range(2))
    weights = torch.rand(sum(n for _, n in written), sum(n for _, n in read)).softmax(-1)
    made = merge_tokens(weights, written, read)
    assert made.shape == (len(written), len(read))
    torch.testing.assert_close(made.sum(1), torch.ones(len(written)))


def example(words: int = 4, heads: int = 1, name: str = "word") -> Alignment:
    names = ["attention"] if heads == 1 else [f"d{1 + i // 2}×.{1 + i % 2}" for i in range(heads)]
    source = [f"{name}{i}" for i in range(words)]
    return Alignment(
        source, ["un", "deux", "<end>"], [HeadMap(one, torch.eye(max(words, 3))[:3, :words]) for one in names]
    )


@given(st.integers(20, 120), st.integers(3, 30), st.sampled_from(["w", "longer-word", "漢字"]))
def test_a_drawing_fits_the_terminal_and_shows_every_word_once(width, words, name):
    from rich.cells import cell_len

    drawn = draw(example(words, name=name), width)
    lines = drawn.split("\n")
    assert all(cell_len(line) <= width for line in lines[:-1])
    assert "\033" not in drawn
    assert drawn.count("█") >= 3
    assert sum(line.startswith("deux") for line in lines) == sum(line.startswith("<end>") for line in lines)
    if name == "w":
        shown = [word for line in lines if line.startswith(" ") for word in line.split()]
        assert shown[:words] == [f"w{i}" for i in range(words)]


@pytest.mark.parametrize("words", [["il", "<end>"], ["Wim", "mmm"], ["OQOQOQ", "und"], ["ЩЖ"], ["漢字"]])
def test_no_word_is_cut_off_at_the_edge(words):
    """By the widths of DejaVu Sans, one of the wider fonts; a Chinese character is a square."""
    draw_text = pytest.importorskip("matplotlib.ft2font").FT2Font
    font = draw_text(pytest.importorskip("matplotlib.font_manager").findfont("DejaVu Sans"))
    font.set_size(13, 72)

    def width(word):
        if word == "漢字":
            return 26
        font.set_text(word)
        return font.get_width_height()[0] / 64

    drawn, wide, _ = figure(Alignment(words, words, [HeadMap("attention", torch.eye(len(words)))]))
    page = ET.fromstring(f"<svg>{drawn}</svg>")
    ends = [(one.text or "", float(one.get("x", 0))) for one in page.iter("text") if one.get("text-anchor") == "end"]
    assert [word for word, _ in ends] == words
    assert all(x - width(word) >= 0 for word, x in ends)
    for word, one in zip(words, [one for one in page.iter("text") if one.get("transform")], strict=True):
        x, y = map(float, str(one.get("transform")).partition("(")[2].partition(")")[0].split())
        assert y - math.sin(math.radians(50)) * width(word) >= 0
        assert x + math.cos(math.radians(50)) * width(word) <= wide


def test_shades_grow_with_the_weight_and_color_is_optional():
    weights = torch.tensor([[0.01, 0.1, 0.2, 0.5, 0.9]])
    drawn = draw(Alignment(list("abcde"), ["x"], [HeadMap("attention", weights)]))
    assert drawn.split("\n")[1] == "x    " + " ".join(shade * 2 for shade in SHADES[1:])
    assert "\033[34m" in draw(example(), color=True)
    assert "mean of 4 heads" in draw(example(heads=4))


@pytest.mark.parametrize("heads", [1, 6])
def test_a_picture_says_what_it_shows(heads):
    found = example(heads=heads, name="<&")
    root = ET.fromstring(svg([found, found]))
    space = {"s": "http://www.w3.org/2000/svg"}
    assert root.find("s:title", space).text == "Alignment of 2 translations"  # type: ignore[union-attr]
    assert "deux from <&1 (1.00)" in root.find("s:desc", space).text  # type: ignore[union-attr, operator]
    words = [text.text for text in root.iterfind(".//s:text", space)]
    assert words.count("<&2") == 2
    assert words.count("d3×.2") == (2 if heads == 6 else 0)
    assert "prefers-color-scheme:dark" in root.find("s:style", space).text  # type: ignore[union-attr, operator]
    assert page([found]).count("<svg") == 1


@pytest.mark.parametrize("heads", [1, 6])
def test_pictures_are_written(tmp_path, heads):
    for kind, start in ((".svg", b"<svg"), (".html", b"<!doctype html>"), (".png", b"\x89PNG")):
        path = tmp_path / f"a{kind}"
        save([example(heads=heads), example(9, heads)], path)
        assert path.read_bytes().startswith(start)


def test_a_picture_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a name that ends in \.svg, \.png, \.html"):
        check(tmp_path / "a.jpg")
    with pytest.raises(UserError, match="there is no folder"):
        check(tmp_path / "nowhere" / "a.svg")
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        save([example()], tmp_path / "b.svg")
