"""A real Chromium, and tabs in it that may not complain and may ask nobody but their own server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT = 30_000  # milliseconds; the machine may be busy
ASKED = re.compile(r"(https?|wss?|ftp|file):", re.I)

#: A canvas's pixels, without Chromium's advice about canvases that are read often.
PIXELS = """canvas => {
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    return context.getImageData(0, 0, copy.width, copy.height);
}"""


def executable() -> str:
    """The Chromium of this machine; none is fetched."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"there is no Chromium here: none of {', '.join(NAMES)} is on the path")
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="it is not installed: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=executable(), args=["--disable-gpu", "--force-color-profile=srgb"]
        )
        yield browser
        browser.close()


class Tab:
    """One page, with everything it asked and everything the console said about it."""

    def __init__(self, browser: Any, origin: str, **settings: Any):
        self.origin = origin
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def open(self, view: str = "runs", **params: Any) -> Any:
        """Turn to a view by its address; gives the page."""
        self.page.goto(address(self.origin, view, **params))
        return self.page

    def params(self) -> dict[str, str]:
        """What the address says now."""
        return self.page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")

    def exported(self, kind: str) -> bytes:
        """The view as a file, through the menu."""
        self.page.get_by_role("button", name="Export").click()
        with self.page.expect_download() as waiting:
            self.page.get_by_role("menuitem", name=kind).click()
        assert waiting.value.suggested_filename.endswith(f".{kind.lower()}")
        return Path(waiting.value.path()).read_bytes()

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript expression holds, in which `arg` is the argument."""
        self.page.wait_for_function(f"arg => {condition}", arg=argument)

    def close(self) -> None:
        """Nothing was complained about, and nothing left the machine."""
        self.page.wait_for_timeout(50)
        self.context.close()
        assert not self.complaints, self.complaints
        strangers = [url for url in self.asked if ASKED.match(url) and not url.startswith(self.origin + "/")]
        assert not strangers, strangers


def address(origin: str, view: str, **params: Any) -> str:
    """The address of a state of the page."""
    query = urlencode({key: value for key, value in params.items() if value is not None})
    return f"{origin}/#/{view}{'?' + query if query else ''}"


def told(data: bytes) -> Any:
    """A JSON export; NaN and the like are not JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)
