"""All views: export, keyboard access, accessible names, contrast in both color schemes."""

from __future__ import annotations

import shutil
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from browser_kit import Tab, parse_export
from serve_kit import run_server  # pyright: ignore[reportMissingImports]

TEXT = "one two three four one two"
VIEWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "runs": ("runs", {"runs": "plain,wild"}, "[aria-label=Findings] li"),
    "heads": ("attention", {"run": "plain", "text": TEXT}, "table"),
    "head": ("attention", {"run": "plain", "text": TEXT, "layer": 1, "head": 2, "query": 9, "key": 4}, ".cell"),
    "lines": (
        "attention",
        {"run": "plain", "text": TEXT, "layer": 1, "head": 2, "as": "lines", "lines": "0"},
        "svg .token",
    ),
    "translation": ("attention", {"run": "transformer", "text": "one two", "target": "eins zwei"}, "table"),
    "sampling": ("sampling", {"run": "plain", "text": TEXT, "top_k": 4}, "tr.excluded"),
    "lens": ("probes", {"run": "plain", "text": TEXT}, "[aria-label='Logit lens'] td"),
    "model": ("probes", {"run": "plain", "text": TEXT, "probe": "model"}, "[aria-label='Whole model'] td"),
    "rollout": ("probes", {"run": "plain", "text": TEXT, "probe": "rollout"}, "#probe-panel canvas"),
    "roles": ("probes", {"run": "plain", "text": TEXT, "probe": "roles"}, "#probe-panel td"),
    "ablation": ("probes", {"run": "plain", "text": TEXT, "probe": "ablation", "ablated": "0.1"}, "pre"),
    "patching": ("probes", {"run": "plain", "text": TEXT, "probe": "patching"}, ".chips button"),
    "masks": ("masks", {"mask": "causal & window(8)"}, "[role=application]"),
}
EXPORTED = ("runs", "head", "sampling", "ablation", "masks")  # one of each view
INTERACTIVE = {
    "button",
    "link",
    "textbox",
    "slider",
    "checkbox",
    "combobox",
    "spinbutton",
    "tab",
    "menuitem",
    "application",
}


def open_view(tab: Tab, name: str) -> Any:
    view, params, selector = VIEWS[name]
    page = tab.open(view, **params)
    page.locator(selector).first.wait_for()
    page.wait_for_load_state("networkidle")
    return page


@pytest.mark.parametrize("name", EXPORTED)
def test_export(tab: Tab, name: str) -> None:
    page = open_view(tab, name)
    svg = ElementTree.fromstring(tab.export("SVG"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    content = " ".join(text for element in svg.iter() if (text := (element.text or "").strip()))
    heading = page.locator("main h2:visible").first.inner_text()
    assert heading.split("\n")[0] in content
    assert not [key for element in svg.iter() for key, value in element.attrib.items() if value.startswith("http")]
    png = tab.export("PNG")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (2 * int(svg.attrib["width"]), 2 * int(svg.attrib["height"]))
    assert width > 1500
    assert height > 300
    assert len(png) > 10_000  # not blank
    assert parse_export(tab.export("JSON"))
    assert tab.page.evaluate("document.documentElement.className") == ""


@pytest.mark.parametrize("name", VIEWS)
def test_accessible_names_and_keyboard_access(tab: Tab, name: str) -> None:
    page = open_view(tab, name)
    devtools = tab.context.new_cdp_session(page)
    nodes = devtools.send("Accessibility.getFullAXTree")["nodes"]
    interactive = [node for node in nodes if not node["ignored"] and node["role"]["value"] in INTERACTIVE]
    assert len(interactive) > 8
    assert [node for node in interactive if not node.get("name", {}).get("value", "").strip()] == []
    # A canvas has a label, or is inside an element with one.
    labeled = "canvas.closest('[aria-label]:not(section, main)')"
    unnamed = f"[...document.querySelectorAll('main canvas')].filter((canvas) => !{labeled})"
    assert page.evaluate(f"{unnamed}.length") == 0
    assert page.evaluate("[...document.querySelectorAll('h1')].length") == 1
    # Elements outside the tab order must belong to a grid or menu with its own keyboard navigation.
    expected = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
            .filter((element) => element.checkVisibility() && !element.disabled)
            .map((element, index) => [(element.dataset.index = index), element])
            .filter(([, element]) => element.tabIndex >= 0 || !element.closest("[role=grid], [role=menu]"))
            .map(([index]) => index)"""
    )
    reached, last = set(), None
    page.evaluate("document.activeElement.blur()")
    for _ in range(len(expected) + 20):
        page.keyboard.press("Tab")
        index = page.evaluate("document.activeElement.dataset.index ?? null")
        if index is None and last is None and reached:
            break
        last = index
        reached.add(index)
    assert {str(index) for index in expected} <= reached


# The contrast of all visible text (WCAG 2.2, 1.4.3): at least 4.5 to 1, and 3 to 1 for large text.
CONTRAST = """() => {
    const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = dot.getContext("2d", { willReadFrequently: true });
    const read = (color) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], under) => [r, g, b].map((one, c) => one * a + under[c] * (1 - a));
    const ground = (element) => {
        if (!element) return [255, 255, 255];
        const color = read(getComputedStyle(element).backgroundColor);
        return color[3] === 1 ? color.slice(0, 3) : over(color, ground(element.parentElement));
    };
    const light = (color) => {
        const [r, g, b] = color.map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const text = walk.currentNode.data.trim(), element = walk.currentNode.parentElement;
        const left = element.closest("option, svg, .visually-hidden, .skip, noscript, script");
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
def test_contrast_in_both_color_schemes(tab: Tab, name: str) -> None:
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        page = open_view(tab, name)
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
        assert page.evaluate(CONTRAST) == []


def test_theme_choice_is_stored(tab: Tab) -> None:
    page = open_view(tab, "masks")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.keyboard.press("t")
    tab.wait_until(f"{ground} !== arg", before)
    night = page.evaluate(ground)
    tab.page.reload()
    tab.wait_until(f"{ground} === arg", night)
    page.get_by_role("button", name="Light theme").click()
    tab.wait_until(f"{ground} === arg", before)


def test_number_keys_switch_views(tab: Tab) -> None:
    page = tab.open("masks", run="plain", text=TEXT)
    page.get_by_role("region", name="Blocks").wait_for()
    for key, view in zip("12345", ("runs", "attention", "sampling", "probes", "masks"), strict=True):
        page.keyboard.press(key)
        tab.wait_until("location.hash.startsWith(`#/${arg}`)", view)
        assert tab.params()["text"] == TEXT  # the shared parameters are kept
    page.go_back()
    tab.wait_until("location.hash.startsWith('#/probes') && document.title.startsWith('probes')")
    page.get_by_role("tab", name="Logit lens").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    tab.wait_until("document.activeElement.role === 'menuitem'")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    tab.wait_until("document.activeElement.id === 'input-text'")
    page.keyboard.press("Escape")  # leaves the text box
    page.keyboard.press("5")
    tab.wait_until("location.hash.startsWith('#/masks')")


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_clipped_on_a_phone(tab: Tab, name: str) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = open_view(tab, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    clipped = """[...document.querySelectorAll("main *")].filter((element) => {
        const box = element.getBoundingClientRect(), scrolls = element.closest(".scroll, .cue, svg, .visually-hidden");
        return box.width && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
    }).map((element) => `${element.tagName}.${element.className}`)"""
    assert page.evaluate(clipped) == []


def test_a_narrow_window_has_no_scrollbars_within_the_page(chromium: Any, runs: Path, tmp_path: Path) -> None:
    for number in range(12):
        shutil.copytree(runs / "plain", tmp_path / f"run-{number}")
    with run_server(tmp_path) as server:
        tab = Tab(chromium, f"http://127.0.0.1:{server.port}")
        tab.page.set_viewport_size({"width": 420, "height": 900})
        tab.page.goto(f"{tab.origin}/?token={server.token}")
        listed = "document.querySelectorAll('[aria-label=\"Run list\"] li').length"
        tab.wait_until(f"{listed} === 5")
        scrolling = """[...document.querySelectorAll("nav, [aria-label='Run list'] ul, [aria-label=Heads]")].filter(
            (element) => getComputedStyle(element).overflowY !== "hidden" && element.scrollHeight > element.clientHeight
        ).map((element) => element.tagName)"""
        assert tab.page.evaluate(scrolling) == []
        tab.page.get_by_role("button", name="All 12 runs").click()
        tab.wait_until(f"{listed} === 12")
        assert tab.page.evaluate(scrolling) == []
        tab.open("attention", run="run-1", text=TEXT, layer=1, head=2).locator(
            "[aria-label=Heads] canvas"
        ).first.wait_for()
        assert tab.page.evaluate(scrolling) == []
        tab.close()


def test_scrolled_content_fades_out_at_the_edge(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = open_view(tab, "lens")
    region = "document.querySelector('[role=region][aria-label=\"Logit lens\"]')"
    right = f"getComputedStyle({region}).getPropertyValue('--right')"
    assert page.evaluate(right) == "28px"
    page.get_by_role("region", name="Logit lens").evaluate("region => region.scrollTo(9999, 0)")
    tab.wait_until(f"{right} === '0px'")


def test_request_without_a_token_is_rejected(chromium: Any, tab: Tab) -> None:
    context = chromium.new_context()
    page = context.new_page()
    response = page.goto(f"{tab.origin}/")
    assert response.status in (401, 403)
    assert "regard serve" in page.locator("body").inner_text()
    context.close()
