"""The built page, loaded once at startup: requests never open files."""

from __future__ import annotations

from importlib.resources import files

from regard.errors import UserError

#: The files of the page with their media types.
MEDIA_TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}


def load_assets() -> dict[str, bytes]:
    """Return the files of the page by name."""
    folder = files("regard.serve") / "page"
    try:
        return {name: (folder / name).read_bytes() for name in MEDIA_TYPES}
    except OSError as error:
        raise UserError("the page is not built; run `make web`, or install regard from a wheel") from error
