"""Every view, for everybody: as files, by keyboard, by name, in both schemes."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from browser_kit import Tab, told

TEXT = "one two three four one two"
VIEWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "runs": ("runs", {"runs": "plain,wild"}, "[aria-label=Findings] li"),
    "heads": ("attend", {"run": "plain", "text": TEXT}, "table"),
    "head": ("attend", {"run": "plain", "text": TEXT, "layer": 1, "head": 2, "query": 9, "key": 4}, ".work"),
    "translation": ("attend", {"run": "transformer", "text": "one two", "other": "eins zwei"}, "table"),
    "step": ("step", {"run": "plain", "text": TEXT, "k": 4}, "tr.out"),
    "lens": ("probe", {"run": "plain", "text": TEXT}, "[aria-label='Logit lens'] td"),
    "rollout": ("probe", {"run": "plain", "text": TEXT, "part": "rollout"}, "#probe-panel canvas"),
    "roles": ("probe", {"run": "plain", "text": TEXT, "part": "roles"}, "#probe-panel td"),
    "off": ("probe", {"run": "plain", "text": TEXT, "part": "heads", "off": "0.1"}, "pre"),
    "patch": ("probe", {"run": "plain", "text": TEXT, "part": "patch"}, ".chips button"),
    "masks": ("masks", {"mask": "causal & window(8)"}, "[role=application]"),
}
SEEN = {name: VIEWS[name] for name in ("runs", "head", "step", "off", "masks")}  # one of each view, to be kept as files
ACTIVE = {"button", "link", "textbox", "slider", "checkbox", "combobox", "spinbutton", "tab", "menuitem", "application"}


def opened(tab: Tab, name: str) -> Any:
    view, params, sign = VIEWS[name]
    page = tab.open(view, **params)
    page.locator(sign).first.wait_for()
    page.wait_for_load_state("networkidle")
    return page


@pytest.mark.parametrize("name", SEEN)
def test_a_view_is_exported_as_valid_files(tab: Tab, name: str) -> None:
    page = opened(tab, name)
    drawing = ElementTree.fromstring(tab.exported("SVG"))
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    written = " ".join(text for element in drawing.iter() if (text := (element.text or "").strip()))
    heading = page.locator("main h2:visible").first.inner_text()
    assert heading.split("\n")[0] in written
    assert not [key for element in drawing.iter() for key, value in element.attrib.items() if value.startswith("http")]
    picture = tab.exported("PNG")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height) == (2 * int(drawing.attrib["width"]), 2 * int(drawing.attrib["height"]))
    assert width > 1500
    assert height > 300
    assert len(picture) > 10_000  # there is something on it
    assert told(tab.exported("JSON"))
    assert tab.page.evaluate("document.documentElement.className") == ""


@pytest.mark.parametrize("name", VIEWS)
def test_everything_has_a_name_and_is_reached_by_keys(tab: Tab, name: str) -> None:
    page = opened(tab, name)
    devtools = tab.context.new_cdp_session(page)
    nodes = devtools.send("Accessibility.getFullAXTree")["nodes"]
    active = [one for one in nodes if not one["ignored"] and one["role"]["value"] in ACTIVE]
    assert len(active) > 8
    assert [one for one in active if not one.get("name", {}).get("value", "").strip()] == []
    # A canvas is named itself, or lies in something that is.
    unnamed = (
        "[...document.querySelectorAll('main canvas')].filter((one) => !one.closest('[aria-label]:not(section, main)'))"
    )
    assert page.evaluate(f"{unnamed}.length") == 0
    assert page.evaluate("[...document.querySelectorAll('h1')].length") == 1
    # What cannot be tabbed to must be a part of something with keys of its own.
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
            .filter((one) => one.checkVisibility() && !one.disabled)
            .map((one, at) => [(one.dataset.at = at), one])
            .filter(([, one]) => one.tabIndex >= 0 || !one.closest("[role=grid], [role=menu]"))
            .map(([at]) => at)"""
    )
    reached, last = set(), None
    page.evaluate("document.activeElement.blur()")
    for _ in range(len(wanted) + 20):
        page.keyboard.press("Tab")
        at = page.evaluate("document.activeElement.dataset.at ?? null")
        if at is None and last is None and reached:
            break
        last = at
        reached.add(at)
    assert {str(at) for at in wanted} <= reached


# Every visible piece of text against what lies under it (WCAG 2.2, 1.4.3): 4.5 to 1, and 3 to 1 where it is large.
CONTRAST = """() => {
    const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = dot.getContext("2d", { willReadFrequently: true });
    const read = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], under) => [r, g, b].map((one, c) => one * a + under[c] * (1 - a));
    const ground = (element) => {
        if (!element) return [255, 255, 255];
        const colour = read(getComputedStyle(element).backgroundColor);
        return colour[3] === 1 ? colour.slice(0, 3) : over(colour, ground(element.parentElement));
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const text = walk.currentNode.data.trim(), element = walk.currentNode.parentElement;
        const left = element.closest(":disabled, option, svg, .unseen, .skip, noscript, script");
        if (!text || left || !element.checkVisibility({ checkOpacity: true })) continue;
        const style = getComputedStyle(element), under = ground(element);
        const [a, b] = [light(over(read(style.color), under)), light(under)].sort((x, y) => y - x);
        const size = parseFloat(style.fontSize), ratio = (a + 0.05) / (b + 0.05);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        if (ratio < (large ? 3 : 4.5)) found.push(`${text}: ${ratio.toFixed(2)} ${style.color} on ${under}`);
    }
    return found;
}"""


@pytest.mark.parametrize("name", VIEWS)
def test_text_can_be_read_in_both_schemes(tab: Tab, name: str) -> None:
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        page = opened(tab, name)
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
        assert page.evaluate(CONTRAST) == []


def test_the_readers_choice_of_light_or_dark_lasts(tab: Tab) -> None:
    page = opened(tab, "masks")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.keyboard.press("t")
    tab.until(f"{ground} !== arg", before)
    night = page.evaluate(ground)
    tab.page.reload()
    tab.until(f"{ground} === arg", night)
    page.get_by_role("button", name="Light page").click()
    tab.until(f"{ground} === arg", before)


def test_keys_lead_from_view_to_view(tab: Tab) -> None:
    page = tab.open("masks", run="plain", text=TEXT)
    page.get_by_role("region", name="Blocks").wait_for()
    for key, view in zip("12345", ("runs", "attend", "step", "probe", "masks"), strict=True):
        page.keyboard.press(key)
        tab.until("location.hash.startsWith(`#/${arg}`)", view)
        assert tab.params()["text"] == TEXT  # what one looks at goes along
    page.go_back()
    tab.until("location.hash.startsWith('#/probe') && document.title.startsWith('probe')")
    page.get_by_role("tab", name="Logit lens").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    tab.until("document.activeElement.role === 'menuitem'")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    tab.until("document.activeElement.id === 'read-text'")


def test_who_was_not_let_in_is_told_how(chromium: Any, tab: Tab) -> None:
    stranger = chromium.new_context()
    page = stranger.new_page()
    answer = page.goto(f"{tab.origin}/")
    assert answer.status in (401, 403)
    assert "regard serve" in page.locator("body").inner_text()
    stranger.close()
