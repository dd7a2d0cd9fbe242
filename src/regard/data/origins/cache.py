"""The user's cache: what was fetched or made once and can be made again.

Everything in it arrives whole: files are written into a folder of their own under `partial/`, synced, and
renamed into place. Two processes that want the same thing at once both do the work and one of them wins;
neither sees half of it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError


def cache_folder() -> Path:
    """`REGARD_CACHE` if set, else `regard` in the platform's folder for caches."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "regard"


@contextmanager
def partial_folder(cache: Path) -> Iterator[Path]:
    """A fresh folder in the cache for files that are not whole yet; gone at the end, whatever happened.

    The block writes only into the cache (readers turn their own errors into `UserError` first), so an
    `OSError` that comes out of it means that the cache could not be written.
    """
    try:
        (cache / "partial").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache / "partial", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise UserError(
            f"cannot write in the cache folder {cache}: {error.strerror or error}; make room there, or set "
            "the environment variable REGARD_CACHE to a folder that can be written"
        ) from error


def settle(source: Path, target: Path) -> None:
    """Sync the file `source` and rename it to `target`, replacing what was there."""
    sync(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def settle_folder(source: Path, target: Path) -> None:
    """Sync the files of the folder `source` and rename it to `target`, unless another process was first."""
    for file in source.iterdir():
        sync(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(source, target)
    except OSError:
        if not target.is_dir():
            raise


def sync(file: Path) -> None:
    """Bring the file's bytes to the disk, so that a rename never outlives them."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())
