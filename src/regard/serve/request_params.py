"""What a request may ask, read strictly: each value has a type and bounds, and a wrong one is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.errors import UserError


class RequestParams:
    """The values of a request's body, or of its query, by name."""

    def __init__(self, given: Mapping[str, Any]):
        self._given = given

    def text(self, name: str, most: int = 200_000) -> str:
        """A text that must be there."""
        found = self.text_or_none(name, most)
        if found is None:
            raise UserError(f"{name!r} is missing; send a text")
        return found

    def text_or_none(self, name: str, most: int = 200_000) -> str | None:
        """A text, or nothing."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise UserError(f"{name!r} must be a text, not {_kind(value)}")
        if len(value) > most:
            raise UserError(f"{name!r} has {len(value):,} characters; send at most {most:,}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{name!r} holds half a character (a lone surrogate); send whole ones") from None
        return value

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number between two bounds."""
        found = self.whole_or_none(name, low, high)
        if found is None and default is None:
            raise UserError(f"{name!r} is missing; send a whole number from {low} to {high}")
        return default if found is None else found  # type: ignore[return-value]

    def whole_or_none(self, name: str, low: int, high: int) -> int | None:
        """A whole number between two bounds, or nothing."""
        value = self._given.get(name)
        if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
            value = int(value)  # out of a query
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UserError(f"{name!r} must be a whole number from {low} to {high}, not {_shown(value)}")
        return value

    def real(self, name: str, low: float, high: float, default: float) -> float:
        """A number between two bounds."""
        value = self._given.get(name)
        if value is None:
            return default
        if isinstance(value, str) and len(value) <= 32:
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise UserError(f"{name!r} must be a number from {low:g} to {high:g}, not {_shown(self._given[name])}")
        return float(value)

    def places(self, name: str, most: int) -> list[int] | None:
        """A list of positions, or nothing."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > most:
            raise UserError(f"{name!r} must be a list of at most {most:,} whole numbers, not {_kind(value)}")
        return [RequestParams({name: one}).whole(name, 0, most) for one in value]

    def heads(self, name: str, most: int = 4096) -> list[tuple[int, int]]:
        """A list of (attention, head)."""
        value = self._given.get(name)
        if not isinstance(value, list) or len(value) > most or any(not isinstance(one, list) for one in value):
            raise UserError(f"{name!r} must be a list of [attention, head], at most {most:,} of them")
        if any(len(one) != 2 for one in value):
            raise UserError(f"{name!r} must be a list of [attention, head]: two numbers each")
        return [
            (RequestParams({name: a}).whole(name, 0, most), RequestParams({name: h}).whole(name, 0, most))
            for a, h in value
        ]


def _kind(value: Any) -> str:
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
