"""Published models of every format that can be read."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from regard.convert.archive import unpacked
from regard.convert.gguf_models import read_gguf
from regard.convert.hub import CONFIG, read_hub
from regard.convert.weights import Imported


def read_model(
    source: Path, ignore: tuple[str, ...] = (), compare: Callable[[Path, Imported], None] | None = None
) -> Imported:
    """The model of a folder in the hub's layout, of a .tar of one, or of a .gguf or .onnx file.

    ``compare`` is called with the folder of a model in the hub's layout, which may be temporary.
    """
    if source.suffix == ".onnx":  # the hub keeps ONNX files in a folder below config.json
        beside = (source.parent / CONFIG).exists() or source.absolute().parent.name != "onnx"
        return read_hub(source.parent if beside else source.absolute().parent.parent, ignore, source)
    if not source.is_dir() and source.suffix != ".tar":
        return read_gguf(source)
    with nullcontext(source) if source.is_dir() else unpacked(source) as folder:
        given = read_hub(folder, ignore)
        if compare is not None:
            compare(folder, given)
        return given
