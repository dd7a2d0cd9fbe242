"""The range of an option: `width: int = option(128, "features per token", least=1)`. `Config.check` refuses others."""

from dataclasses import Field
from functools import cache
from math import inf
from numbers import Integral
from typing import NamedTuple


class Bounds(NamedTuple):
    """The values that an option may have; of a tuple, each of its entries; no value (None) has none."""

    least: float = -inf
    above: float = -inf
    most: float = inf
    below: float = inf
    whole: bool = False  # a whole number

    def check(self, name: str, value: object) -> None:
        """Raise ValueError for a value outside of them."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is None:
                continue
            if self.whole and not isinstance(one, Integral):
                raise ValueError(f"{name} must be a whole number, not {one!r}")
            if not (isinstance(one, int | float) and self._contain(one)):
                raise ValueError(f"{name} must be {self}, not {one}")

    def _contain(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        lower = f"above {self.above:g}" if self.above > -inf else f"at least {self.least:g}"
        if self.most < inf or self.below < inf:
            return f"{lower} and {f'at most {self.most:g}' if self.most < inf else f'below {self.below:g}'}"
        lower = "zero or more" if self.least == 0 else lower
        return lower if self.whole else f"a finite number{',' if self.least == 0 else ''} {lower}"


@cache
def bounds_of(cls: type) -> dict[str, Bounds]:
    """The bounds of a config's options by name. An option that a subclass gives another default keeps them."""
    found: dict[str, Bounds] = {}
    for base in reversed(cls.__mro__):
        fields: dict[str, Field] = vars(base).get("__dataclass_fields__", {})
        for name, field in fields.items():
            given = {key: field.metadata[key] for key in ("least", "above", "most", "below") if key in field.metadata}
            if given:
                found[name] = Bounds(**given, whole="int" in str(field.type))
    return found
