"""Rotary positions in `config.json`: `rope_theta` and `rope_scaling`, or both as `rope_parameters`."""

from typing import Any

from regard.convert.family import JsonObject, Settings
from regard.errors import UserError
from regard.nn.positions.position import RotaryConfig
from regard.nn.positions.scaling import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)


def read_rope(given: Settings, theta: float = 10_000.0) -> RotaryConfig:
    """The rotary positions of a `config.json`; ``theta``: the family's default base."""
    base = float(given.get("rope_theta", theta))
    scaling = given.get("rope_scaling", {})
    parameters = given.get("rope_parameters", {}) or scaling
    base = float(parameters.get("rope_theta", base))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return RotaryConfig(base, _scaling(kind, parameters, given))


def _scaling(kind: str, given: JsonObject, settings: Settings) -> ScalingConfig:
    trained: Any = given.get("original_max_position_embeddings") or settings.get("original_max_position_embeddings")
    factor = float(given.get("factor") or 1.0)
    if kind == "default":
        return NoScalingConfig()
    if kind == "linear":
        return LinearScalingConfig(factor)
    if kind == "llama3":
        return Llama3ScalingConfig(
            factor, float(given.get("high_freq_factor", 4.0)), float(given.get("low_freq_factor", 1.0)), trained
        )
    if kind == "yarn" and given.get("truncate", True) and not (given.get("mscale") or given.get("mscale_all_dim")):
        fast, slow = float(given.get("beta_fast") or 32.0), float(given.get("beta_slow") or 1.0)
        return YarnScalingConfig(factor, fast, slow, trained, given.get("attention_factor"))
    raise UserError(f"config.json: the rope scaling {kind!r} cannot be imported; default, linear, llama3 and yarn can")


def write_rope(position: RotaryConfig) -> JsonObject | None:
    """The fields of `config.json`; None if there are none for this scaling."""
    scaling, fields = position.scaling, {"rope_theta": position.base}
    match scaling:
        case NoScalingConfig():
            return fields
        case LinearScalingConfig():
            found: JsonObject = {"rope_type": "linear", "factor": scaling.factor}
        case Llama3ScalingConfig():
            found = {"rope_type": "llama3", "factor": scaling.factor}
            found |= {"high_freq_factor": scaling.fast, "low_freq_factor": scaling.slow}
        case YarnScalingConfig():
            found = {"rope_type": "yarn", "factor": scaling.factor, "beta_fast": scaling.fast}
            found |= {"beta_slow": scaling.slow}
            found |= {} if scaling.temperature is None else {"attention_factor": scaling.temperature}
        case _:
            return None
    if isinstance(scaling, Llama3ScalingConfig | YarnScalingConfig) and scaling.trained is not None:
        found["original_max_position_embeddings"] = scaling.trained
    return fields | {"rope_scaling": found}
