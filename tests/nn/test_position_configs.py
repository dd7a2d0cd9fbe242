"""Positions in configs: choices, and settings that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regard.config import load, override, to_toml
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.positions.position import (
    RotaryConfig,
    T5Config,
)
from regard.nn.positions.scaling import (
    LinearScalingConfig,
    NTKScalingConfig,
    YarnScalingConfig,
)


def test_a_scaling_is_chosen_like_any_part() -> None:
    config = load(GPTConfig, {"position": {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 8.0}}})
    assert config.position == RotaryConfig(scaling=YarnScalingConfig(factor=8.0))
    assert 'kind = "yarn"' in to_toml(config)
    assert load(GPTConfig, {"position": "rotary"}).position == RotaryConfig()
    argv = ["--position", "rotary", "--position.scaling", "yarn", "--position.scaling.factor", "8"]
    assert override(GPTConfig(), argv) == config
    assert override(GPTConfig(), ["--position", "t5", "--position.buckets", "8"]).position == T5Config(buckets=8)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ({"kind": "rotary", "scaling": {"kind": "linear", "factor": 0.5}}, "factor must be at least 1"),
        ({"kind": "rotary", "scaling": {"kind": "yarn", "fast": 1.0, "slow": 2.0}}, "must be more than slow"),
        ({"kind": "rotary", "scaling": {"kind": "llama3", "fast": 1.0}}, "must be more than slow"),
        ({"kind": "rotary", "scaling": {"kind": "dynamic", "length": 0}}, "length must be a finite number above 0"),
        ({"kind": "rotary", "base": 1.0, "scaling": "ntk"}, "a base of 1 does not have"),
        ({"kind": "relative", "distance": 0}, "distance must be at least 1"),
        ({"kind": "t5", "buckets": 5}, "even number from 4 on"),
        ({"kind": "t5", "buckets": 64, "furthest": 32}, "furthest must be more"),
    ],
)
def test_impossible_settings_are_refused(position: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load(GPTConfig, {"position": position})


def test_one_pair_cannot_be_stretched_by_its_base() -> None:
    with pytest.raises(UserError, match="a head width of 2 has one"):
        GPTConfig(width=8, heads=4, position=RotaryConfig(scaling=NTKScalingConfig())).build()
    assert replace(RotaryConfig(), scaling=LinearScalingConfig()).build(width=8, head_width=2, context=4) is not None
