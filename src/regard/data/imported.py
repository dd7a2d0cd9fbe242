"""The data of an imported model: none. The run remembers where the model came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import option
from regard.data.base import Data, DataConfig, Example, Specials
from regard.data.images.data import image_examples
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.models import ModelConfig


@dataclass(frozen=True)
class ImportedConfig(DataConfig, kind="imported"):
    """No data: the model was trained elsewhere."""

    source: str = option("", "the file or folder that the model was imported from")
    sha256: str = option("", "of its weights")
    pad: int | None = option(None, "encoder-decoders: the token that fills a batch")
    begin: int | None = option(None, "encoder-decoders: the first token that the decoder reads")
    end: int | None = option(None, "encoder-decoders: the token that ends a text")
    forbidden: tuple[int, ...] = option((), "tokens that the model must not write")
    forbidden_first: tuple[int, ...] = option((), "tokens that it must not begin with")
    batch: int = option(1, "not used")

    @property
    def specials(self) -> Specials | None:
        """The special tokens of an encoder-decoder; None if they are not known."""
        if self.pad is None or self.begin is None or self.end is None:
            return None
        return Specials(self.pad, self.begin, self.end)

    def read_examples(self, path: Path, model: "ModelConfig") -> list[Example]:
        return image_examples(path, model)

    def build(self, context: int, cache: Path | None = None) -> Data[Any]:
        raise UserError(f"the model was imported from {self.source}, without the data that it was trained on")
