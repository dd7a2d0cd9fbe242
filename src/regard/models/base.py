"""What every model config has in common."""

from __future__ import annotations

from typing import Any

from regard.config import Choice
from regard.errors import UserError


class ModelConfig(Choice):
    """Which model an experiment trains."""

    def check(self) -> None:
        """Refuse impossible sizes with a ValueError that names the fix."""

    def make(self) -> Any:
        """The model; the config has been checked."""
        raise NotImplementedError

    def build(self) -> Any:
        """The model, with fresh weights from PyTorch's current random state."""
        try:
            self.check()
        except ValueError as problem:
            raise UserError(str(problem)) from problem
        return self.make()


def check_sizes(config: ModelConfig, *names: str) -> None:
    """Each is a number from 1 on; None is nobody's size."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")


def check_dropouts(config: ModelConfig, *names: str) -> None:
    """Each is a share; None is none of its own."""
    for name in names:
        share = getattr(config, name)
        if share is not None and not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {share}")


def check_heads(width: int, heads: int) -> None:
    """The width is divided evenly among the heads."""
    if heads > width:
        raise ValueError(f"{heads} heads do not fit into a width of {width}; heads = {width} would")
    if width % heads:
        near = max(h for h in range(1, heads + 1) if width % h == 0)
        raise ValueError(f"width {width} is not divisible by {heads} heads; heads = {near} would do")
