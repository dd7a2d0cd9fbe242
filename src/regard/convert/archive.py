"""A folder in the hub's layout as one .tar file, which is how the cache keeps a model of several files."""

import io
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from regard.errors import UserError

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
ONNX = ("config.json", "tokenizer.json", "generation_config.json", "model_quantized.onnx", "tagger.onnx")
ONNX += ("encoder_model_quantized.onnx", "decoder_model_merged_quantized.onnx")


def pack(members: Mapping[str, bytes]) -> bytes:
    """The files as an uncompressed .tar without their folders; equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(PurePosixPath(name).name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return buffer.getvalue()


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary folder with the files of a .tar that a model consists of; others are left in it."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps mapped files
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if (
                        member.isreg()
                        and member.name in FILES + ONNX
                        and (content := tar.extractfile(member)) is not None
                    ):
                        with open(Path(folder) / member.name, "xb") as out:
                            shutil.copyfileobj(content, out)
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise UserError(f"{path} is no whole .tar file ({error}); get it again") from error
        yield Path(folder)
