"""Options with a range: what lies outside is refused, by every config that has such an option."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import regard.train  # noqa: F401 (every part is registered)
from regard.config import Choice, Config, kinds, load, option
from regard.config.bounds import Bounds, bounds_of
from regard.errors import UserError


@dataclass(frozen=True)
class Sizes(Config):
    width: int | None = option(8, "a size", least=1)
    share: float = option(0.0, "a share", least=0, below=1)
    scale: float = option(1.0, "a factor", above=0)
    steps: tuple[int, ...] = option((2, 3), "sizes", least=2)


@dataclass(frozen=True)
class Wider(Sizes):
    width: int | None = option(16, "a size")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"width": 0}, "width must be at least 1, not 0"),
        ({"width": 2.0}, "width must be a whole number, not 2.0"),
        ({"share": 1.0}, "share must be at least 0 and below 1, not 1.0"),
        ({"share": math.nan}, "share must be at least 0 and below 1, not nan"),
        ({"scale": 0.0}, "scale must be a finite number above 0, not 0.0"),
        ({"scale": math.inf}, "scale must be a finite number above 0, not inf"),
        ({"steps": (2, 1)}, "steps must be at least 2, not 1"),
    ],
)
def test_what_is_out_of_range_is_refused(given: dict[str, Any], problem: str) -> None:
    for made in (Sizes(**given), Wider(**given)):  # an option that is declared again keeps its range
        with pytest.raises(ValueError, match=problem):
            made.check()


def test_a_file_is_checked_and_no_value_has_no_range() -> None:
    assert load(Sizes, {"width": "none"}).width is None
    with pytest.raises(UserError, match="width must be at least 1, not 0"):
        load(Sizes, {"width": 0})


def bounded() -> Iterator[tuple[Any, str, Bounds]]:
    """Every option with a range of every registered kind."""
    for union in Choice.__subclasses__():
        for cls in kinds(union).values():
            for name, bounds in bounds_of(cls).items():
                yield cls(), name, bounds


def test_every_config_refuses_what_its_options_do_not_allow() -> None:
    """A `check` of a subclass that does not call the one of its base would let these values through."""
    found = list(bounded())
    assert len(found) > 100
    for config, name, bounds in found:
        outside = bounds.above if bounds.above > -math.inf else bounds.least - 1
        wrong = replace(config, **{name: int(outside) if bounds.whole else outside})
        with pytest.raises(ValueError, match=f"^{name} must be "):
            wrong.check()
