"""MANIFEST.json of a run folder: the SHA-256 of its config and tokenizer.

They decide a model's answers as much as its weights, which the manifest of each checkpoint covers. While a file is
replaced, both its old and its new SHA-256 are listed, so that a run is whole whenever its writer is killed.
"""

import hashlib
import json
from pathlib import Path

from regard.errors import UserError
from regard.runs.disk import parse_object, replace_file
from regard.runs.waiting import notice
from regard.untrusted import read_plain, unreadable

FILE, SCHEMA = "MANIFEST.json", 1
Digests = dict[str, list[str]]  # by file, newest last


def sha256(data: bytes) -> str:
    """The SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def render(digests: Digests) -> bytes:
    """The content of the file."""
    return json.dumps({"schema": SCHEMA, "files": digests}, indent=1).encode()


class FileReplaced(Exception):
    """A training has replaced a file after it was read, and the manifest since."""


def check(folder: Path, name: str, data: bytes) -> None:
    """Refuse ``data``, the content of the file ``name``, if it is not what the run wrote.

    A run of a version without manifests is accepted. ``FileReplaced``: the file has to be read again.
    """
    listed = (_read(folder) or {}).get(name)
    if listed is not None and sha256(data) not in listed:
        if read_plain(folder / name) != data:
            raise FileReplaced
        raise UserError(
            f"{folder / name} is not the file that the run wrote (its SHA-256 is not the one in {FILE}); restore it "
            f"from a copy or, if you changed it on purpose, remove {folder / FILE}"
        )


def notice_if_missing(folder: Path) -> None:
    """Print once that a run has no manifest."""
    if _read(folder) is None:
        notice(f"{folder} has no {FILE}, as runs of older versions: its config.toml and tokenizer.json are not checked")


def allow(folder: Path, name: str, digest: str) -> None:
    """List ``digest`` for the file ``name``, which is about to be replaced."""
    digests = _read(folder) or {}
    _write(folder, digests | {name: [*(one for one in digests.get(name, []) if one != digest), digest]})


def settle(folder: Path, name: str) -> None:
    """List only the newest SHA-256 of the file ``name``, which has been replaced."""
    digests = _read(folder) or {}
    _write(folder, digests | {name: digests[name][-1:]})


def _write(folder: Path, digests: Digests) -> None:
    if digests != _read(folder):
        replace_file(folder / FILE, render(digests))


def _read(folder: Path) -> Digests | None:
    """The content; None if there is none."""
    path = folder / FILE
    try:
        content = parse_object(read_plain(path))
        digests = content.get("files")
        if content.get("schema") != SCHEMA or not isinstance(digests, dict):
            raise ValueError(f"it has no schema {SCHEMA} with 'files'")
        if not all(isinstance(listed, list) for listed in digests.values()):
            raise ValueError("it does not list the SHA-256 of each file")
        return digests
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}); restore it from a copy, or remove it to go on without this check"
        ) from error
