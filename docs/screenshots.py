"""Take screenshots of every view of the page with real runs: python docs/screenshots.py [RUNS].

RUNS is a folder of runs (default: a temporary one). Missing runs of those named below are trained first, which takes
some minutes. Needs Playwright and Pillow (`pip install playwright pillow`) and a Chromium on the path.
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

HERE = Path(__file__).parent / "pictures"
REGARD = [sys.executable, "-m", "regard"]
MAX_BYTES = 300_000  # of a picture
# A healthy run, one whose learning rate is far too high, and a translation.
RECIPES = {
    "shakespeare": ["shakespeare", "--train.seconds", "60"],
    "shakespeare-hot": [
        *("shakespeare-small", "--train.optimizer", "adamw", "--train.optimizer.lr", "0.3", "--train.steps", "600"),
    ],
    "translate": ["translate-transformer", "--train.seconds", "300"],
}
TEXT = "ROMEO:\nWhat light is this? It is the light of day.\n\nJULIET:\nWhat light"
SOURCE, TARGET = "The device is already configured", "L'appareil est déjà configuré"


def train_missing(runs: Path) -> None:
    """Train the runs that do not exist."""
    for name, words in RECIPES.items():
        if not (runs / name).exists():
            command = [*REGARD, "train", *words, "--name", name, "--runs", str(runs), "--doctor"]
            subprocess.run(command, check=True)


def save(page: Page, name: str) -> None:
    """Save a screenshot of the window."""
    page.mouse.move(2, 400)
    page.wait_for_timeout(600)
    path = HERE / f"page-{name}.png"
    Image.open(BytesIO(page.screenshot())).convert("RGB").save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path.name} has {path.stat().st_size:,} bytes"
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def scroll(page: Page, pixels: int) -> None:
    """Scroll down."""
    page.evaluate(f"scrollTo(0, {pixels})")


def take_all(page: Page, origin: str) -> None:
    """One screenshot per view."""

    def open(view: str, **params: Any) -> None:
        page.goto(f"{origin}/#/{view}?{urlencode(params)}")

    lm = {"run": "shakespeare", "text": TEXT}
    open("runs", runs="shakespeare,shakespeare-hot")
    page.get_by_role("region", name="Findings").wait_for()
    page.get_by_role("region", name="Differences").get_by_role("table").wait_for()
    save(page, "runs")

    open("attend", **lm)
    page.get_by_role("table").wait_for()
    save(page, "attend")

    open("attend", **lm, layer=2, head=1, query=40, key=34)
    page.get_by_role("region", name="The cell worked out").wait_for()
    scroll(page, 150)
    save(page, "head")
    scroll(page, 960)
    save(page, "cell")

    open("step", run="shakespeare", text="ROMEO:\nWhat light", temperature=0.8, p=0.9)
    page.get_by_role("button", name="Draw", exact=True).wait_for()
    for _ in range(12):
        length = page.evaluate("location.hash.length")
        page.get_by_role("button", name="Draw", exact=True).click()
        page.wait_for_function("length => location.hash.length > length", arg=length)
        page.wait_for_timeout(300)
    save(page, "step")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("img", name="Beam search").wait_for()
    scroll(page, 2000)
    save(page, "beam")

    open("probe", **lm, part="heads", off="0.0,1.2")
    page.get_by_text("and after").wait_for()
    save(page, "probe")

    open("masks", mask="causal & (window(24) | sinks(2))", length=96, block=8)
    page.get_by_role("region", name="Blocks").wait_for()
    save(page, "masks")

    open("attend", run="translate", text=SOURCE, other=TARGET, layer=4, head=0, query=2, key=1)
    page.get_by_label("One row").get_by_role("table").wait_for()
    save(page, "translation")


def main(runs: Path) -> None:
    train_missing(runs)
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit("Chromium was not found on the path; install chromium or google-chrome")
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
            take_all(page, address.partition("/?")[0])
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
