"""Durable writes and strict JSON."""

import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from regard.config.notation import JsonObject
from regard.errors import UserError
from regard.untrusted import check_depth, open_plain

#: Prefix of temporary files, by which the leftovers of a killed process are recognized.
UNFINISHED = ".tmp-"

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than this system allows (see `ulimit -f`)",
    errno.EACCES: "permission is denied; choose another folder or change its permissions",
    errno.EPERM: "permission is denied; choose another folder or change its permissions",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EISDIR: "there is a folder of that name; remove it",
    errno.ENOTDIR: "a part of this path is a file, not a folder; choose another folder",
}


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Convert an ``OSError`` that a user can fix into a ``UserError`` about ``what``."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None or isinstance(error, UserError):
            raise
        raise UserError(f"cannot write {what}: {remedy}, then try again") from error


def unfinished(name: str) -> str:
    """A temporary name for ``name`` while it is written, in the same folder."""
    return f"{UNFINISHED}{name}-{secrets.token_hex(4)}"


def sync(path: Path) -> None:
    """Flush a file, or the directory entry of a folder, to disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows cannot open a folder to sync it
    # Windows syncs only what is open for writing.
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    descriptor = os.open(path, flags) if folder else open_plain(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; a file must be synced.
        if not (folder and error.errno == errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; a ``UserError`` if it cannot be written."""
    replace_by(path, lambda temporary: write_synced(temporary, data))


def replace_files(folder: Path, files: Mapping[str, str]) -> None:
    """Replace files of a folder, which is made if there is none; a ``UserError`` if they cannot be written."""
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_file(folder / name, text.encode())


def replace_by(path: Path, write: Callable[[Path], None]) -> None:
    """Replace a file atomically: ``write`` writes a temporary one, which is then renamed."""
    temporary = path.with_name(unfinished(path.name))
    with writing(str(path)):
        try:
            write(temporary)
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def plain(value: object, nonfinite: Callable[[float], object], at: str = "record") -> Any:
    """``value`` as JSON types, or a ``TypeError`` that names the key.

    Tuples become lists, 0-d arrays and tensors numbers; ``nonfinite`` converts NaN and infinities.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else nonfinite(float(value))
    if isinstance(value, dict):
        if others := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{at} has the key {others[0]!r}; JSON keys are strings")
        return {str(key): plain(item, nonfinite, f"{at}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, nonfinite, f"{at}[{index}]") for index, item in enumerate(value)]
    if getattr(value, "ndim", None) == 0:
        return plain(value.item(), nonfinite, at)  # pyright: ignore[reportAttributeAccessIssue]
    raise TypeError(f"{at} is a {type(value).__name__}, which JSON cannot hold; give numbers, text, lists or dicts")


def parse_object(text: bytes) -> JsonObject:
    """Parse a JSON object strictly: UTF-8, no NaN, no duplicate keys; else ``ValueError``."""
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    check_depth(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, object]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found
