"""Masks view: the map and the block layout of an expression, and errors of invalid ones."""

from __future__ import annotations

import re

import pytest
from browser_kit import PIXELS, Tab

from regard.attention.masks.expression import parse
from regard.attention.masks.picture import view


def pixels(tab: Tab, label: str, side: int) -> list[list[bool]]:
    """Return which cells of a canvas differ from the background, by the pixel in the middle of each."""
    return (
        tab.page.get_by_label(label)
        .locator("xpath=descendant-or-self::canvas")
        .evaluate(
            f"""(canvas, side) => {{
            const {{ data, width }} = ({PIXELS})(canvas), cell = width / side;
            const middle = (index) => Math.floor((index + 0.5) * cell);
            const offset = (row, column) => 4 * (middle(row) * width + middle(column));
            const color = (row, column) => data.slice(offset(row, column), offset(row, column) + 4).join();
            const background = color(0, side - 1);
            const indices = [...Array(side).keys()];
            return indices.map((row) => indices.map((column) => color(row, column) !== background));
        }}""",
            side,
        )
    )


def test_map_and_block_layout(tab: Tab) -> None:
    page = tab.open("masks", length=32, block=8)
    page.get_by_label("Mask expression").fill("causal & (window(6) | sinks(2))")
    page.get_by_role("heading", name="causal & (window(6) | sinks(2))").wait_for()
    mask = parse("causal & (window(6) | sinks(2))")
    expected = view(mask, 32, block=8, most=32)
    page.get_by_text(f"{expected.allowed} of 1,024 pairs").wait_for()
    assert sum(sum(row) for row in pixels(tab, "Mask of 32 tokens", 32)) == expected.allowed
    assert pixels(tab, "empty blocks", 4) == [[bool(kind) for kind in row] for row in expected.layout.tolist()]
    kinds = [int((expected.layout == kind).sum()) for kind in (2, 1, 0)]
    page.get_by_text(f"{kinds[0]} full {kinds[1]} partial {kinds[2]} empty").wait_for()


def test_keyboard_and_pointer_show_allowed_pairs(tab: Tab) -> None:
    page = tab.open("masks", mask="causal", length=16, block=8)
    canvas = page.get_by_role("application", name="Mask of 16 tokens")
    canvas.focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.get_by_text("query 1, key 1: allowed").wait_for()
    page.keyboard.press("ArrowUp")
    page.get_by_text("query 0, key 1: masked").wait_for()
    canvas.hover(position={"x": 1, "y": canvas.evaluate("canvas => canvas.clientHeight") - 2})
    page.get_by_text("query 15, key 0: allowed").wait_for()


@pytest.mark.parametrize(
    ("expression", "message", "character"),
    [
        ("causal & windw(4)", "did you mean window?", "w"),
        ("causal &", "cannot be parsed", None),
        ("window(four)", "", None),
        ("__import__('os')", "", None),
        ("<img src=x onerror=alert(1)>", "", None),
    ],
)
def test_invalid_expressions(tab: Tab, expression: str, message: str, character: str | None) -> None:
    page = tab.open("masks", mask="causal")
    page.get_by_role("heading", name="causal").wait_for()
    box = page.get_by_label("Mask expression")
    box.fill(expression)
    tab.wait_until("document.querySelector('#mask-error p')")
    shown = page.locator("#mask-error p").inner_text()
    assert message in shown
    assert len(shown) > 20
    assert box.get_attribute("aria-invalid") == "true"
    if character:
        marked = page.locator("#mask-error b")
        assert marked.inner_text() == character
        assert marked.evaluate("b => b.previousSibling.textContent") == expression[: expression.index("windw")]
    page.get_by_role("heading", name="causal").wait_for()  # the last valid mask stays visible
    box.fill("causal & window(4)")
    page.get_by_role("heading", name="causal & window(4)").wait_for()
    assert not page.locator("#mask-error p").count()


def test_url_holds_the_state(tab: Tab) -> None:
    page = tab.open("masks")
    page.get_by_role("button", name="chunks(16)").click()
    page.get_by_role("heading", name=re.compile(r"chunks\(.*16")).wait_for()
    page.get_by_label("Tokens", exact=False).first.fill("128")
    page.get_by_text("of 16,384 pairs").wait_for()
    assert tab.params() == {"mask": "chunks(16)", "length": "128"}
    tab.page.reload()
    page.get_by_text("of 16,384 pairs").wait_for()
    assert page.get_by_label("Mask expression").input_value() == "chunks(16)"
