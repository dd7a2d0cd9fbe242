"""A small experiment with every shape a config may have, for the tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from regard.config import Choice, option


class PositionConfig(Choice):
    """How a model knows where a token stands."""


@dataclass(frozen=True)
class RotaryConfig(PositionConfig, kind="rotary"):
    base: float = 10_000.0
    share: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedConfig(PositionConfig, kind="learned"):
    length: int = 256


@dataclass(frozen=True)
class NoPositionConfig(PositionConfig, kind="none"):
    pass


class MaskConfig(Choice):
    """A recursive choice."""


@dataclass(frozen=True)
class CausalConfig(MaskConfig, kind="causal"):
    pass


@dataclass(frozen=True)
class WindowConfig(MaskConfig, kind="window"):
    width: int  # required


@dataclass(frozen=True)
class AndConfig(MaskConfig, kind="and"):
    parts: tuple[MaskConfig, ...] = ()


@dataclass(frozen=True)
class NgramConfig:
    orders: tuple[int, ...] = (2, 3)
    buckets: int | None = 4096


@dataclass(frozen=True)
class LimitsConfig:
    """Nothing but defaults of None: written, it is a table without keys."""

    memory: int | None = None


class ModelConfig(Choice):
    """Which model."""


@dataclass(frozen=True)
class GPTConfig(ModelConfig, kind="gpt"):
    width: int = option(128, "features per token")
    heads: int = option(4, "query heads")
    kv_heads: int | None = option(None, "key and value heads; as many as query heads if none")
    dropout: float = option(0.0, "share of activations dropped")
    bias: bool = False
    tied: bool | None = True
    position: PositionConfig = RotaryConfig()
    mask: MaskConfig | None = None
    ngram: NgramConfig | None = None
    limits: LimitsConfig | None = None
    rotary: RotaryConfig = RotaryConfig(base=5.0)
    labels: tuple[str | None, ...] = ("a", None)

    def check(self) -> None:
        if self.heads and self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")


@dataclass(frozen=True)
class TrainConfig:
    steps: int
    rate: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.95)
    precision: Literal["fp32", "bf16"] = "fp32"
    level: Literal[1, 2, "auto", False] = 1
    compile: bool = False
    tags: tuple[str, ...] = ()
    grid: tuple[tuple[int, ...], ...] = ((1,), (2, 3))
    pair: tuple[bool, str] = (True, "x")
    note: str = ""
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps}, but training goes forward; use 0 or more")


@dataclass(frozen=True)
class Experiment:
    model: ModelConfig
    train: TrainConfig
    seed: int = 1
    path: str | None = "data.txt"
    λ: float = 0.5


def experiment(**changes: Any) -> Experiment:
    """An ordinary experiment."""
    return Experiment(**{"model": GPTConfig(), "train": TrainConfig(steps=10), **changes})
