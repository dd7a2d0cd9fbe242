"""Choices: one class adds a part; two parts never share a name."""

from __future__ import annotations

from dataclasses import dataclass

import config_tree as tree
import pytest

from regard.config import Choice, add_presets, dump, keys, kinds, load, override
from regard.errors import UserError


class ShapeConfig(Choice):
    """A union."""


class RoundConfig(ShapeConfig):
    """Some of its members: abstract, since it has no kind."""


@dataclass(frozen=True)
class CircleConfig(RoundConfig, kind="circle"):
    radius: float = 1.0


@dataclass(frozen=True)
class DiscConfig(CircleConfig, kind="disc"):
    filled: bool = True


@dataclass(frozen=True, slots=True)
class SquareConfig(ShapeConfig, kind="square"):
    side: float = 1.0


@dataclass(frozen=True)
class Drawing:
    any: ShapeConfig = SquareConfig()
    round: RoundConfig = CircleConfig()
    circle: CircleConfig = CircleConfig()


def test_kinds_are_those_a_field_would_take() -> None:
    assert kinds(ShapeConfig) == {"circle": CircleConfig, "disc": DiscConfig, "square": SquareConfig}
    assert kinds(RoundConfig) == {"circle": CircleConfig, "disc": DiscConfig}
    assert kinds(tree.PositionConfig).keys() == {"rotary", "learned", "none"}


def test_a_field_takes_its_annotation_and_what_is_below_it() -> None:
    config = load(Drawing, {"any": "disc", "round": "disc", "circle": {"kind": "disc", "filled": False}})
    assert config == Drawing(DiscConfig(), DiscConfig(), DiscConfig(filled=False))
    assert load(Drawing, {"circle": {"radius": 2}}).circle == CircleConfig(2.0)
    assert load(Drawing, dump(config)) == config
    with pytest.raises(UserError, match='must be one of the kinds "circle", "disc"; write `round = "circle"`'):
        load(Drawing, {"round": "square"})


def test_a_dataclass_with_slots_is_registered_as_the_class_that_exists() -> None:
    assert kinds(ShapeConfig)["square"] is SquareConfig
    assert SquareConfig.kind == "square"


def test_two_classes_cannot_share_a_kind_in_one_union() -> None:
    with pytest.raises(TypeError, match=r'ShapeConfig has the kind "circle" already \(.*CircleConfig\)'):

        class Other(ShapeConfig, kind="circle"):
            pass

    assert kinds(ShapeConfig)["circle"] is CircleConfig


def test_two_unions_can_use_one_kind() -> None:
    class ColourConfig(Choice):
        pass

    @dataclass(frozen=True)
    class WheelConfig(ColourConfig, kind="circle"):
        pass

    assert load(ColourConfig, "circle") == WheelConfig()
    assert load(ShapeConfig, "circle") == CircleConfig()


def test_a_part_that_extends_a_part_needs_its_own_kind() -> None:
    with pytest.raises(TypeError, match='extends the kind "circle", so it needs another kind'):

        class Ring(CircleConfig):
            pass


def test_a_union_has_no_kind() -> None:
    with pytest.raises(TypeError, match="is a union"):

        class Named(Choice, kind="named"):
            pass


@pytest.mark.parametrize("kind", ["two words", "a,b", "{x}", "-x"])
def test_a_kind_must_be_easy_to_type(kind: str) -> None:
    with pytest.raises(TypeError, match="use letters, digits"):
        type("Odd", (ShapeConfig,), {}, kind=kind)


def test_a_part_without_dataclass_or_with_a_field_called_kind_is_refused() -> None:
    class BrokenConfig(Choice):
        pass

    class Undecorated(BrokenConfig, kind="bare"):
        pass

    @dataclass(frozen=True)
    class Clash(BrokenConfig, kind="clash"):
        kind: str = "clash"  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"Undecorated .* make it a @dataclass\(frozen=True\)"):
        load(BrokenConfig, "bare")
    with pytest.raises(TypeError, match="`kind` names the choice itself"):
        load(BrokenConfig, "clash")


def test_keys_of_a_union_are_its_kind() -> None:
    (key,) = keys(ShapeConfig)
    assert (key.path, key.choices, key.required) == ("kind", ("circle", "disc", "square"), True)


class AreaConfig(Choice):
    """A union with presets."""


@dataclass(frozen=True)
class RectangleConfig(AreaConfig, kind="rectangle"):
    width: int = 1
    height: int = 1


@dataclass(frozen=True)
class Plan:
    area: AreaConfig = RectangleConfig()


def test_a_preset_is_a_config_by_name() -> None:
    add_presets(AreaConfig, {"hall": RectangleConfig(30, 20)})
    assert load(Plan, {"area": "hall"}).area == RectangleConfig(30, 20)
    assert load(Plan, {"area": {"kind": "hall", "height": 5}}).area == RectangleConfig(30, 5)
    changed = override(Plan(RectangleConfig(7, 7)), ["--area.height", "5", "--area", "hall"])
    assert changed.area == RectangleConfig(30, 5)
    assert dump(changed) == {"area": {"kind": "rectangle", "width": 30, "height": 5}}
    assert keys(Plan)[0].choices == ("rectangle", "hall")
    with pytest.raises(UserError, match='the kind "rectangle" or of the presets "hall"; write `--area hall`'):
        override(Plan(), ["--area", "hal"])
    with pytest.raises(TypeError, match='has the kind "rectangle" already'):
        add_presets(AreaConfig, {"rectangle": RectangleConfig()})
