"""Masks: an expression becomes a picture and its blocks, and a wrong one a sentence."""

from __future__ import annotations

import re

import pytest
from browser_kit import PIXELS, Tab

from regard.attention.masks.expression import parse
from regard.look.pictures.mask_view import view


def pixels(tab: Tab, label: str, side: int) -> list[list[bool]]:
    """Which cells of a canvas are not ground, read off the middle of each."""
    return (
        tab.page.get_by_label(label)
        .locator("xpath=descendant-or-self::canvas")
        .evaluate(
            f"""(canvas, side) => {{
            const {{ data, width }} = ({PIXELS})(canvas), cell = width / side;
            const middle = (at) => Math.floor((at + 0.5) * cell);
            const place = (row, column) => 4 * (middle(row) * width + middle(column));
            const at = (row, column) => data.slice(place(row, column), place(row, column) + 4).join();
            const ground = at(0, side - 1);
            return [...Array(side)].map((_, row) => [...Array(side)].map((_, column) => at(row, column) !== ground));
        }}""",
            side,
        )
    )


def test_an_expression_is_drawn_with_its_blocks(tab: Tab) -> None:
    page = tab.open("masks", length=32, block=8)
    page.get_by_label("Masks joined by").fill("causal & (window(6) | sinks(2))")
    page.get_by_role("heading", name="causal & (window(6) | sinks(2))").wait_for()
    mask = parse("causal & (window(6) | sinks(2))")
    seen = view(mask, 32, block=8, most=32)
    page.get_by_text(f"{seen.allowed} of 1,024 pairs").wait_for()
    assert sum(sum(row) for row in pixels(tab, "Mask of 32 tokens", 32)) == seen.allowed
    assert pixels(tab, "empty blocks", 4) == [[bool(kind) for kind in row] for row in seen.layout.tolist()]
    kinds = [int((seen.layout == kind).sum()) for kind in (2, 1, 0)]
    page.get_by_text(f"{kinds[0]} full {kinds[1]} partial {kinds[2]} empty").wait_for()


def test_keys_and_pointer_tell_who_may_look(tab: Tab) -> None:
    page = tab.open("masks", mask="causal", length=16, block=8)
    canvas = page.get_by_role("application", name="Mask of 16 tokens")
    canvas.focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.get_by_text("query 1 may look at key 1").wait_for()
    page.keyboard.press("ArrowUp")
    page.get_by_text("query 0 may not look at key 1").wait_for()
    canvas.hover(position={"x": 1, "y": canvas.evaluate("one => one.clientHeight") - 2})
    page.get_by_text("query 15 may look at key 0").wait_for()


@pytest.mark.parametrize(
    ("wrong", "why", "letter"),
    [
        ("causal & windw(4)", "did you mean window?", "w"),
        ("causal &", "cannot be parsed", None),
        ("window(four)", "", None),
        ("__import__('os')", "", None),
        ("<img src=x onerror=alert(1)>", "", None),
    ],
)
def test_a_wrong_one_is_a_sentence_and_no_noise(tab: Tab, wrong: str, why: str, letter: str | None) -> None:
    page = tab.open("masks", mask="causal")
    page.get_by_role("heading", name="causal").wait_for()
    box = page.get_by_label("Masks joined by")
    box.fill(wrong)
    tab.until("document.querySelector('#mask-failure p')")
    said = page.locator("#mask-failure p").inner_text()
    assert why in said
    assert len(said) > 20
    assert box.get_attribute("aria-invalid") == "true"
    if letter:
        marked = page.locator("#mask-failure b")
        assert marked.inner_text() == letter
        assert marked.evaluate("b => b.previousSibling.textContent") == wrong[: wrong.index("windw")]
    page.get_by_role("heading", name="causal").wait_for()  # the last that could be drawn stays
    box.fill("causal & window(4)")
    page.get_by_role("heading", name="causal & window(4)").wait_for()
    assert not page.locator("#mask-failure p").count()


def test_the_address_is_the_state(tab: Tab) -> None:
    page = tab.open("masks")
    page.get_by_role("button", name="chunks(16)").click()
    page.get_by_role("heading", name=re.compile(r"chunks\(.*16")).wait_for()
    page.get_by_label("Tokens", exact=False).first.fill("128")
    page.get_by_text("of 16,384 pairs").wait_for()
    assert tab.params() == {"mask": "chunks(16)", "length": "128"}
    tab.page.reload()
    page.get_by_text("of 16,384 pairs").wait_for()
    assert page.get_by_label("Masks joined by").input_value() == "chunks(16)"
