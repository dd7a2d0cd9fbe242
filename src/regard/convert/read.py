"""Published models of every format that can be read."""

from pathlib import Path

from regard.convert.archive import unpacked
from regard.convert.gguf_models import read_gguf
from regard.convert.hub import CONFIG, read_hub
from regard.convert.weights import Imported


def read_model(source: Path, ignore: tuple[str, ...] = ()) -> Imported:
    """The model of a folder in the hub's layout, of a .tar of one, or of a .gguf or .onnx file."""
    if source.is_dir():
        return read_hub(source, ignore)
    if source.suffix == ".onnx":  # the hub keeps ONNX files in a folder below config.json
        beside = (source.parent / CONFIG).exists() or source.absolute().parent.name != "onnx"
        return read_hub(source.parent if beside else source.absolute().parent.parent, ignore, source)
    if source.suffix != ".tar":
        return read_gguf(source)
    with unpacked(source) as folder:
        return read_hub(folder, ignore)
