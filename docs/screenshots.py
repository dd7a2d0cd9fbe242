"""Take screenshots of every view of the page: python docs/screenshots.py [RUNS].

RUNS is a folder of runs (default: a temporary folder). Missing runs are trained first, which takes some minutes.
Requires Playwright and Pillow (`pip install playwright pillow`) and a Chromium on the path.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
REGARD = [sys.executable, "-m", "regard"]
LIMIT = 300_000  # bytes per image
# A healthy run, one with a learning rate that is far too high, and a translation model.
RECIPES = {
    "shakespeare": ["shakespeare", "--train.steps", "200"],
    "shakespeare-hot": [
        *("shakespeare-small", "--train.optimizer", "adamw", "--train.optimizer.lr", "0.3", "--train.steps", "600"),
    ],
    "translate": [
        *("translate-transformer", "--model.layers", "2", "--model.width", "128", "--model.dropout", "0.0"),
        *("--data.batch", "768", "--train.steps", "500"),
    ],
}
TEXT = "ROMEO:\nWhat light is this? It is the light of day.\n\nJULIET:\nWhat light"
SOURCE, TARGET = "The device is already configured", "L'appareil est déjà configuré"


def train_missing(runs: Path) -> None:
    """Train the runs that do not exist."""
    for name, arguments in RECIPES.items():
        if not (runs / name).exists():
            command = [*REGARD, "train", *arguments, "--name", name, "--runs", str(runs), "--doctor"]
            subprocess.run(command, check=True)


def save_screenshot(page: Page, name: str) -> None:
    """Save the visible part of the page as an optimized PNG."""
    page.mouse.move(2, 400)
    page.wait_for_timeout(600)
    path = PICTURES / f"page-{name}.png"
    Image.open(BytesIO(page.screenshot())).convert("RGB").save(path, optimize=True)
    assert path.stat().st_size < LIMIT, f"{path.name} has {path.stat().st_size:,} bytes"
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def scroll(page: Page, pixels: int) -> None:
    """Scroll to a vertical position."""
    page.evaluate(f"scrollTo(0, {pixels})")


def take_screenshots(page: Page, origin: str) -> None:
    """Open every view and save a screenshot."""

    def open(view: str, **params: Any) -> None:
        page.goto(f"{origin}/#/{view}?{urlencode(params)}")

    lm = {"run": "shakespeare", "text": TEXT}
    open("runs", runs="shakespeare,shakespeare-hot")
    page.get_by_role("region", name="Findings").wait_for()
    page.get_by_role("region", name="Differences").get_by_role("table").wait_for()
    save_screenshot(page, "runs")

    open("attention", **lm)
    page.get_by_role("table").wait_for()
    save_screenshot(page, "attention")

    open("attention", **lm, layer=2, head=1, query=40, key=34)
    page.get_by_role("region", name="Weight computation").wait_for()
    scroll(page, 150)
    save_screenshot(page, "head")
    scroll(page, 960)
    save_screenshot(page, "cell")

    open("sampling", run="shakespeare", text="ROMEO:\nWhat light", temperature=0.8, top_p=0.9)
    page.get_by_role("button", name="Sample", exact=True).wait_for()
    for _ in range(12):
        length = page.evaluate("location.hash.length")
        page.get_by_role("button", name="Sample", exact=True).click()
        page.wait_for_function("length => location.hash.length > length", arg=length)
        page.wait_for_timeout(300)
    save_screenshot(page, "sampling")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("img", name="Beam search tree").wait_for()
    scroll(page, 2000)
    save_screenshot(page, "beam")

    open("probes", **lm, probe="ablation", ablated="0.0,1.2")
    page.get_by_text("Generated text before").wait_for()
    save_screenshot(page, "probes")

    open("probes", **lm, probe="model")
    page.get_by_role("rowheader", name="prediction").first.wait_for()
    scroll(page, 150)
    save_screenshot(page, "model")

    open("masks", mask="causal & (window(24) | sinks(2))", length=96, block=8)
    page.get_by_role("region", name="Blocks").wait_for()
    save_screenshot(page, "masks")

    pair = {"run": "translate", "text": SOURCE, "target": TARGET}
    open("attention", **pair)
    page.get_by_role("button", name="decoder layer 2, cross, head 3").click()
    layer = page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('layer')")
    open("attention", **pair, layer=layer, head=2, query=2, key=1)
    page.get_by_label("Query weights").get_by_role("table").wait_for()
    scroll(page, 0)
    save_screenshot(page, "translation")
    page.get_by_role("button", name="Lines").click()
    page.get_by_role("button", name="head 1", exact=True).click()
    page.locator("svg .token").first.wait_for()
    save_screenshot(page, "lines")


def main(runs: Path) -> None:
    train_missing(runs)
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit("chromium and google-chrome are not on the path; install one of them")
    command = [*REGARD, "serve", "--runs", str(runs), "--no-browser", "--device", "cpu", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=browser)
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(60_000)
            page.goto(address)
            take_screenshots(page, address.partition("/?")[0])
            chromium.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "runs")
