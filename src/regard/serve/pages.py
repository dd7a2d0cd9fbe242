"""The built page, read once: no file is opened for a request."""

from __future__ import annotations

from importlib.resources import files

from regard.errors import UserError

NAMES = ("index.html", "page.js", "page.css")


def page() -> dict[str, bytes]:
    """Its files by name."""
    folder = files("regard.serve") / "page"
    try:
        return {name: (folder / name).read_bytes() for name in NAMES}
    except OSError as error:
        raise UserError("the page is not built; run `make web`, or install regard from a wheel") from error
