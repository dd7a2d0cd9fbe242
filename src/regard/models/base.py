"""What every model config has in common."""

from __future__ import annotations

from typing import Any

from regard.config import Choice


class ModelConfig(Choice):
    """Which model an experiment trains."""

    def build(self) -> Any:
        raise NotImplementedError
