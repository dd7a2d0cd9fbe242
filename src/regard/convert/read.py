"""Published models of every format that can be read."""

from pathlib import Path

from regard.convert.archive import unpacked
from regard.convert.gguf_models import read_gguf
from regard.convert.hub import read_hub
from regard.convert.weights import Imported


def read_model(source: Path, ignore: tuple[str, ...] = ()) -> Imported:
    """The model of a folder in the hub's layout, of a .tar of one, or of a .gguf file."""
    if source.is_dir():
        return read_hub(source, ignore)
    if source.suffix != ".tar":
        return read_gguf(source)
    with unpacked(source) as folder:
        return read_hub(folder, ignore)
