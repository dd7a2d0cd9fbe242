"""Typed access to request parameters: each value is checked for type and range, and errors name the parameter."""

import math
from collections.abc import Mapping
from contextlib import suppress

from regard.errors import UserError

#: The largest integer parameter, and the largest seed.
LARGEST, LARGEST_SEED = 2**31 - 1, 2**63 - 1


class RequestParams:
    """The parameters of a request (JSON body, or path and query) by name."""

    def __init__(self, values: Mapping[str, object]):
        self._values = values

    def text(self, name: str, limit: int = 200_000) -> str:
        """A required string of at most ``limit`` characters."""
        value = self.optional_text(name, limit)
        if value is None:
            raise UserError(f"{name!r} is missing; send a string")
        return value

    def optional_text(self, name: str, limit: int = 200_000) -> str | None:
        """A string of at most ``limit`` characters, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise UserError(f"{name!r} must be a string, not {_brief(value)}")
        if len(value) > limit:
            raise UserError(f"{name!r} has {len(value):,} characters; send at most {limit:,}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{name!r} contains a lone surrogate; send valid Unicode") from None
        return value

    def integer(self, name: str, low: int, high: int = LARGEST, default: int | None = None) -> int:
        """An integer in ``[low, high]``; required unless there is a default."""
        value = self.optional_integer(name, low, high)
        value = default if value is None else value
        if value is None:
            raise UserError(f"{name!r} is missing; send an integer from {low} to {high}")
        return value

    def optional_integer(self, name: str, low: int, high: int = LARGEST) -> int | None:
        """An integer in ``[low, high]``, or None."""
        value = self._values.get(name)
        return None if value is None else _integer(name, value, low, high)

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A float in ``[low, high]``."""
        value = default if (given := self._values.get(name)) is None else given
        number = math.nan
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if not low <= number <= high:
            raise UserError(f"{name!r} must be a number from {low:g} to {high:g}, not {_brief(value)}")
        return number

    def optional_integers(self, name: str, limit: int) -> list[int] | None:
        """A list of at most ``limit`` positions, or None."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > limit:
            raise UserError(f"{name!r} must be a list of at most {limit:,} integers, not {_brief(value)}")
        return [_integer(name, item, 0, limit) for item in value]

    def texts(self, name: str, limit: int) -> list[str]:
        """A list of at most ``limit`` strings."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > limit:
            raise UserError(f"{name!r} must be a list of at most {limit:,} strings, not {_brief(value)}")
        return [RequestParams({name: item}).text(name) for item in value]

    def heads(self, name: str, limit: int = 4096) -> list[tuple[int, int]]:
        """A list of at most ``limit`` pairs (attention, head)."""
        value = self._values.get(name)
        pairs = isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value)
        if not isinstance(value, list) or not pairs or len(value) > limit:
            raise UserError(f"{name!r} must be a list of at most {limit:,} pairs [attention, head]")
        return [(_integer(name, layer, 0, limit), _integer(name, head, 0, limit)) for layer, head in value]


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)  # from a query string
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{name!r} must be an integer from {low} to {high}, not {_brief(value)}")
    return value


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
