"""Named tensors in a safetensors file, including tied, strided and empty ones."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.untrusted import open_plain

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
#: Key in the file's metadata: a JSON object from each omitted name to the name of the same tensor.
SHARED = "shared"


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


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that ``path`` stores, from the file's header."""
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """The tensors of ``path`` on the CPU, under all their names; tied ones share memory again."""
    import torch

    with _opened(path) as file:
        shared = json.loads((file.metadata() or {}).get(SHARED, "{}"))
        # Copies, because the file is mapped: torch aligns its own memory, and CPU kernels may round differently with
        # another alignment, so that a resumed run would differ from an uninterrupted one. A mapping would also keep
        # the disk space of a checkpoint that is removed later.
        tensors = {name: torch.clone(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        return tensors | {name: tensors[source] for name, source in shared.items()}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, opened by its library; what is no tensor file is a UserError, also while it is read."""
    from safetensors import SafetensorError, safe_open

    try:
        os.close(open_plain(path))  # the library would follow links and wait for a FIFO
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a tensor file of a run ({error}); take another checkpoint") from error
