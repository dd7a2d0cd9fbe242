"""The data of an imported model: none. The run remembers where the model came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.config import option
from regard.data.base import Data, DataConfig
from regard.errors import UserError


@dataclass(frozen=True)
class ImportedConfig(DataConfig, kind="imported"):
    """No data: the model was trained elsewhere."""

    source: str = option("", "the file or folder that the model was imported from")
    sha256: str = option("", "of its weights")
    batch: int = option(1, "not used")

    def build(self, context: int, cache: Path | None = None) -> Data[Any]:
        raise UserError(f"the model was imported from {self.source}, without the data that it was trained on")
