"""The cells of `regard look`: the page computes from embedded vectors what the server computes, for every mechanism."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_kit import Tab, parse_export

sys.path.append(str(Path(__file__).parents[1] / "look"))
from session_kit import LANGUAGE, PAIRS, TEXT, gpt, translator  # pyright: ignore[reportMissingImports]

from regard.attention import LinearConfig, SoftmaxConfig, StridedConfig
from regard.attention.normalizer import EntmaxConfig, SigmoidConfig, SoftmaxNormalizerConfig, TopKNormalizerConfig
from regard.data import Bytes
from regard.look.views.session import Session
from regard.look.views.trace import Trace
from regard.models import EncoderConfig
from regard.nn.positions.position import RelativeConfig
from regard.pages.svg import picture
from regard.serve.html_file import html_document

MORE = {
    "sigmoid": {"attention": SoftmaxConfig(normalizer=SigmoidConfig(shift=-1.0))},
    "entmax": {"attention": SoftmaxConfig(normalizer=EntmaxConfig())},
    "soft top-k": {"attention": SoftmaxConfig(normalizer=TopKNormalizerConfig(k=3, softness=0.5))},
    "temperature": {"attention": SoftmaxConfig(normalizer=SoftmaxNormalizerConfig(temperature=0.5))},
    "relative": {"position": RelativeConfig()},
    "strided": {"attention": StridedConfig(4)},
}
BIASED = [name for name in LANGUAGE if name not in ("plain", "repeated", "reversible", "learned")]
CELLS = ((0, 0), (7, 3), (9, 9), (10, 2), (3, 8))  # query and key; a causal mask hides the last


def make_trace(name: str) -> Trace:
    if name in PAIRS:
        return translator(name).trace("the light is on", "so is it in the kitchen")
    return gpt(**{**LANGUAGE, **MORE}[name]).trace(TEXT[:20])


def open_file(chromium: Any, trace: Trace, path: Path) -> Tab:
    path.write_text(html_document(trace, "t", "x"), encoding="utf-8")
    tab = Tab(chromium, path.parent.as_uri(), accept_downloads=True)
    tab.page.goto(path.as_uri())
    return tab


def exported(tab: Tab, attention: int, head: int, query: int, key: int) -> dict[str, Any]:
    """Select a cell by the URL and return the exported data."""
    tab.page.evaluate(f"location.hash = '#/attention?layer={attention}&head={head}&query={query}&key={key}'")
    weight = tab.page.get_by_role("region", name="Weight computation")
    weight.get_by_text(f" {query}:").wait_for()
    return parse_export(tab.export("JSON"))


@pytest.mark.parametrize("name", [*BIASED, *MORE, *PAIRS])
def test_cells_of_a_file_are_those_of_the_server(chromium: Any, tmp_path: Path, name: str) -> None:
    trace = make_trace(name)
    tab = open_file(chromium, trace, tmp_path / "look.html")
    last = len(trace.attentions) - 1
    sizes = trace.about()["attentions"][last]
    for query, key in CELLS:
        place = last, sizes["heads"] - 1, min(query, sizes["queries"] - 1), min(key, sizes["keys"] - 1)
        want, saved = trace.cell(*place), exported(tab, *place)
        assert set(saved["cell"]) == set(want)
        for number, value in want.items():
            got = saved["cell"][number]
            assert got == (value if isinstance(value, str | None) else pytest.approx(value, abs=2e-3)), number
        row = trace.row(*place[:3])
        assert saved["row"]["visible_keys"] == row["visible_keys"]
        assert saved["row"]["entropy"] == pytest.approx(row["entropy"], abs=2e-3)
        assert dict(saved["row"]["weights"]) == pytest.approx(dict(row["weights"]), abs=2e-3)
        assert "NaN" not in tab.page.inner_text("main")
    tab.close()


def test_a_weight_without_steps_says_why(chromium: Any, tmp_path: Path) -> None:
    trace = gpt(attention=LinearConfig()).trace(TEXT[:20])
    tab = open_file(chromium, trace, tmp_path / "look.html")
    tab.page.evaluate("location.hash = '#/attention?layer=1&head=2&query=7&key=3'")
    tab.page.get_by_text("A weight of LinearAttention does not follow from one score").wait_for()
    weights = parse_export(tab.export("JSON"))["row"]["weights"]
    assert dict(weights) == pytest.approx(dict(trace.row(1, 2, 7)["weights"]), abs=1e-4)
    tab.close()


def test_an_encoder_shows_keys_on_both_sides(chromium: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = EncoderConfig(vocabulary=257, context=32, layers=1, heads=2, width=16).build()
    trace = Session(model, Bytes()).trace("to be or not")
    tab = open_file(chromium, trace, tmp_path / "look.html")
    saved = exported(tab, 0, 1, 2, 9)
    assert saved["cell"]["weight"] == pytest.approx(trace.cell(0, 1, 2, 9)["weight"], abs=1e-4)
    tab.page.get_by_text("none of them masked").wait_for()
    tab.close()


def test_the_picture_is_below_the_header(chromium: Any, tmp_path: Path) -> None:
    drawn = picture("an image", "of a digit", 60, 40, [])
    path = tmp_path / "look.html"
    path.write_text(html_document(make_trace("plain"), "t", "a digit", picture=drawn), encoding="utf-8")
    tab = Tab(chromium, path.parent.as_uri())
    tab.page.goto(path.as_uri())
    image, header = tab.page.get_by_role("img", name="a digit"), tab.page.locator("header")
    image.wait_for()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 60
    top, bar = image.bounding_box(), header.bounding_box()
    assert bar["y"] == 0
    assert top["y"] >= bar["height"]
    assert "this text" not in tab.page.inner_text("main")
    tab.close()
