"""Chromium tabs that fail a test on console errors and on requests to other hosts."""

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
NETWORK = re.compile(r"(https?|wss?|ftp|file):", re.I)

#: JavaScript that returns the pixels of a canvas, without Chromium's warning about frequent reads.
PIXELS = """canvas => {
    const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    return context.getImageData(0, 0, copy.width, copy.height);
}"""


def find_chromium() -> str:
    """Return the path of the installed Chromium; skip the test if there is none."""
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"Chromium is not installed: none of {', '.join(NAMES)} is on the path")
    return path


@contextmanager
def launch_chromium() -> Iterator[Any]:
    """Run a headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="it is not installed: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=find_chromium(), args=["--disable-gpu", "--force-color-profile=srgb"]
        )
        yield browser
        browser.close()


class Tab:
    """A page with a record of its requests and console errors."""

    def __init__(self, browser: Any, origin: str, **settings: Any):
        self.origin = origin
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.requests: list[str] = []
        self.console_errors: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.console_errors.append(f"error: {error}"))
        self.page.on("console", self._on_console)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.console_errors.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def open(self, view: str = "runs", **params: Any) -> Any:
        """Open a view by its URL and return the page."""
        self.page.goto(make_url(self.origin, view, **params))
        return self.page

    def params(self) -> dict[str, str]:
        """Return the parameters of the current URL."""
        return self.page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")

    def export(self, kind: str) -> bytes:
        """Export the view with the menu and return the file."""
        self.page.get_by_role("button", name="Export").click()
        with self.page.expect_download() as download:
            self.page.get_by_role("menuitem", name=kind).click()
        assert download.value.suggested_filename.endswith(f".{kind.lower()}")
        return Path(download.value.path()).read_bytes()

    def wait_until(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript expression is true; ``arg`` in it is the argument."""
        self.page.wait_for_function(f"arg => {condition}", arg=argument)

    def close(self) -> None:
        """Close the tab; fail on console errors and on requests to other hosts."""
        self.page.wait_for_timeout(50)
        self.context.close()
        assert not self.console_errors, self.console_errors
        external = [url for url in self.requests if NETWORK.match(url) and not url.startswith(self.origin + "/")]
        assert not external, external


def make_url(origin: str, view: str, **params: Any) -> str:
    """Return the URL of a view with parameters."""
    query = urlencode({key: value for key, value in params.items() if value is not None})
    return f"{origin}/#/{view}{'?' + query if query else ''}"


def parse_export(data: bytes) -> Any:
    """Parse a JSON export strictly: NaN and infinity are rejected."""

    def reject(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(data.decode("utf-8"), parse_constant=reject)
