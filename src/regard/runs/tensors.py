"""Named tensors in a safetensors file, including tied, strided and empty ones."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.config.notation import JsonObject
from regard.errors import UserError
from regard.untrusted import open_plain

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
#: Key in the file's metadata: a JSON object from each omitted name to the name of the same tensor.
SHARED = "shared"
#: The name of each dtype in a file's header: its name in PyTorch, and the bytes of an element.
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "C64": ("complex64", 8),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


class StoredPiece(NamedTuple):
    """A box of a whole tensor, and where it is stored."""

    file: str
    key: str
    start: tuple[int, ...]  # its first element in the whole tensor
    shape: tuple[int, ...]


class FileTensor:
    """A tensor in the files of a checkpoint. Slices of it read no more than that: ``stored[1:3, 0:4]``."""

    def __init__(self, shape: tuple[int, ...], dtype: str, places: tuple[StoredPiece, ...], files: "TensorFiles"):
        self.shape, self.places, self._dtype, self._files = shape, places, dtype, files

    @property
    def dtype(self) -> "torch.dtype":
        """The dtype of its elements."""
        import torch

        return getattr(torch, DTYPES[self._dtype][0])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, box: tuple[slice, ...]) -> "Tensor":
        """A box of it in memory of its own; ``box`` has the start and the end in each dimension."""
        import torch

        # Never the mapped file itself: torch aligns its own memory, and CPU kernels may round differently with another
        # alignment, so that a resumed run would differ from an uninterrupted one. A mapping would also keep the disk
        # space of a checkpoint that is removed later.
        result = torch.empty([part.stop - part.start for part in box], dtype=self.dtype)
        for place in self.places:
            low = [max(part.start, first) for part, first in zip(box, place.start, strict=True)]
            ends = zip(box, place.start, place.shape, strict=True)
            high = [min(part.stop, first + size) for part, first, size in ends]
            if all(begin < end for begin, end in zip(low, high, strict=True)):
                found = self._files.read(place, self._dtype, _box(low, high, place.start))
                result[_box(low, high, [part.start for part in box])] = found
        return result

    def whole(self) -> "Tensor":
        """The whole tensor."""
        return self[_box([0] * len(self.shape), self.shape, [0] * len(self.shape))]


class TensorFiles:
    """The safetensors files of a folder, each opened when it is first read. A context that closes them."""

    def __init__(self, folder: Path):
        self._folder, self._stack = folder, ExitStack()
        self._open: dict[str, Any] = {}

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.clear()
        self._stack.close()

    def tensors(self, name: str) -> dict[str, FileTensor]:
        """The whole tensors in one file, under all their names; tied ones are one object."""
        with _named(self._folder / name):
            file, found = self._file(name), {}
            for key in file.keys():  # noqa: SIM118
                header = file.get_slice(key)
                shape = tuple(header.get_shape())
                if header.get_dtype() not in DTYPES:
                    raise ValueError(f"{key!r} has the dtype {header.get_dtype()}")
                place = StoredPiece(name, key, (0,) * len(shape), shape)
                found[key] = FileTensor(shape, header.get_dtype(), (place,), self)
            shared = json.loads((file.metadata() or {}).get(SHARED, "{}"))
            return found | {other: found[source] for other, source in shared.items()}

    def read(self, place: StoredPiece, dtype: str, part: tuple[slice, ...]) -> "Tensor":
        """A part of what is stored at ``place``, perhaps still in the mapped file."""
        with _named(self._folder / place.file):
            file = self._file(place.file)
            found = file.get_slice(place.key)
            if tuple(found.get_shape()) != place.shape or found.get_dtype() != dtype:
                raise ValueError(f"its {place.key!r} has another shape or dtype than the manifest says")
            return found[part] if part else file.get_tensor(place.key)

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = self._stack.enter_context(_opened(self._folder / name))
        return self._open[name]


def _box(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """From ``low`` to ``high``, counted from ``origin``."""
    return tuple(slice(a - zero, b - zero) for a, b, zero in zip(low, high, origin, strict=True))


def whole_tensors(stored: Mapping[str, FileTensor]) -> dict[str, "Tensor"]:
    """Every tensor whole, one after another; tied ones share memory again."""
    made = {id(tensor): tensor.whole() for tensor in {id(one): one for one in stored.values()}.values()}
    return {name: made[id(tensor)] for name, tensor in stored.items()}


def dtype_name(name: str, tensor: "Tensor") -> str:
    """The name of a tensor's dtype in a file's header."""
    found = [key for key, (own, _) in DTYPES.items() if str(tensor.dtype) == f"torch.{own}"]
    if not found:
        raise TypeError(f"{name} has the dtype {tensor.dtype}, which a checkpoint cannot hold")
    return found[0]


def write_pieces(path: Path, pieces: Mapping[str, "Tensor"]) -> JsonObject:
    """Write a safetensors file tensor by tensor, with one at a time in this machine's memory; sync it.

    Returns its entry in a manifest, whose SHA-256 is computed while it is written.
    """
    import torch

    # By size of the elements, so that each tensor is aligned.
    ordered = sorted(pieces.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header, end = {}, 0
    for key, piece in ordered:
        begin, end = end, end + piece.nbytes
        header[key] = {"dtype": dtype_name(key, piece), "shape": list(piece.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "xb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            digest.update(part)
            file.write(part)
        for _, piece in ordered:
            data = piece.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write ``tensors``; those that share memory (a tied head) are written once.

    Raises ``OSError`` if the disk cannot be written, like every other write.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first_with: dict[tuple, str] = {}
    storages: set[int] = set()
    for name, given in tensors.items():
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"{name} is a {type(given).__name__}, not a tensor; put other values into the state")
        if given.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values to save")
        tensor = given.detach().resolve_conj().resolve_neg()
        memory = tensor.untyped_storage().data_ptr()
        view = (tensor.device, memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and view in first_with:
            shared[name] = first_with[view]
            continue
        first_with[view] = name
        # The format stores dense, separate tensors: one that overlaps another is copied.
        overlaps = memory in storages
        storages.add(memory)
        stored[name] = tensor.clone(memory_format=torch.contiguous_format) if overlaps else tensor.contiguous()
    try:
        save_file(stored, path, metadata={SHARED: json.dumps(shared, sort_keys=True)})
    except SafetensorError as error:
        # The library names the cause only in its message: "... (os error 28)", formerly "Os { code: 28, ...".
        code = re.search(r"os error (\d+)|\bcode: (\d+)", str(error))
        if code is None:
            raise
        number = int(code[1] or code[2])
        raise OSError(number, os.strerror(number), str(path)) from error


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """The tensors of ``path`` on the CPU, under all their names; tied ones share memory again."""
    with TensorFiles(path.parent) as files:
        return whole_tensors(files.tensors(path.name))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, opened by its library."""
    from safetensors import safe_open

    os.close(open_plain(path))  # the library would follow links and wait for a FIFO
    with safe_open(path, framework="pt", device="cpu") as file:
        yield file


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A context in which whatever shows that ``path`` is no tensor file is a UserError."""
    from safetensors import SafetensorError

    try:
        yield
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a tensor file of a run ({error}); take another checkpoint") from error
