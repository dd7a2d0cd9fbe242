"""Checkpoints: written atomically, and verified by SHA-256 when read.

A checkpoint is a folder. Its files are written and synced under a temporary name, then the manifest with sizes and
SHA-256, then the folder is renamed and its parent synced. Whenever the process is killed, either the old or the new
state exists.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from regard.errors import UserError
from regard.runs.disk import UNFINISHED, JsonObject, parse_object, plain, sync, unfinished, write_synced, writing
from regard.runs.tensors import Tensors, read_shapes, read_tensors, write_tensors
from regard.untrusted import open_plain, read_plain

if TYPE_CHECKING:
    from torch import Tensor

FILES = MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "MANIFEST.json"
SCHEMA = 1

# A step that is saved again gets ".1" while both exist, so that one of them exists at any time.
_NAME = re.compile(r"step-([0-9]{6,18})(?:\.([0-9]{1,18}))?")


class Damaged(Exception):
    """A damaged checkpoint; the message names the damage."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. Tensors are read on demand; those that it does not hold are in ``base``."""

    step: int
    path: Path
    state: JsonObject
    base: "Checkpoint | None" = None

    def model(self) -> dict[str, "Tensor"]:
        """The model's tensors, on the CPU."""
        return ({} if self.base is None else self.base.model()) | read_tensors(self.path / MODEL)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's tensors, from the file's header."""
        return ({} if self.base is None else self.base.shapes()) | read_shapes(self.path / MODEL)

    def number(self, name: str) -> float:
        """A number of the state, at least 0."""
        value = self.state.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
            raise UserError(
                f"{self.path / STATE} is damaged (its {name!r} is not a number from 0); restore it from a copy, or "
                "take another checkpoint"
            )
        return value

    def optimizer(self) -> dict[str, "Tensor"]:
        """The optimizer's tensors, on the CPU."""
        return read_tensors(self.path / OPTIMIZER)


def folders(parent: Path) -> list[tuple[int, int, Path]]:
    """(step, attempt, folder) of all checkpoints in ``parent``, newest first, not verified."""
    found = []
    if parent.is_dir():
        for path in parent.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.append((int(match[1]), int(match[2] or 0), path))
    return sorted(found, reverse=True)


def verify(path: Path, step: int) -> Checkpoint:
    """Compare a checkpoint with its manifest; raise ``Damaged`` if they differ."""
    contents = check_sizes(path, step)
    for name, entry in contents.items():
        try:
            digest = _sha256(path / name)
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
        if digest != entry["sha256"]:
            raise Damaged(f"{name} does not have the SHA-256 in its manifest")
    try:
        state = parse_object(read_plain(path / STATE))
    except (OSError, ValueError) as error:
        raise Damaged(f"{STATE} cannot be read ({error})") from error
    return Checkpoint(step, path, state, None if (base := state.get("base")) is None else _base(path, step, base))


def _base(path: Path, step: int, base: object) -> Checkpoint:
    """The earlier checkpoint, in the same folder, with the tensors that do not change."""
    if type(base) is not int or not 0 <= base < step:
        raise Damaged(f"its base is {base!r}, which is no earlier step")
    try:
        return verify(path.with_name(f"step-{base:06d}"), base)
    except Damaged as damage:
        raise Damaged(f"its base, the checkpoint of step {base}, is damaged: {damage}") from damage


def damage(path: Path, step: int, thorough: bool) -> str | None:
    """What is wrong with a checkpoint; None if nothing is. If not ``thorough``, its large files are not read."""
    try:
        (verify if thorough else check_sizes)(path, step)
    except Damaged as found:
        return str(found)
    return None


def write(parent: Path, step: int, model: Tensors, optimizer: Tensors, state: Mapping[str, object]) -> Path:
    """Write the checkpoint of ``step`` into ``parent``, atomically; one of the same step is replaced."""
    if step < 0:
        raise ValueError(f"a checkpoint's step is >= 0, got {step}")
    text = json.dumps(plain(dict(state), _refuse_nonfinite, "state"), indent=1, allow_nan=False)
    parent.mkdir(exist_ok=True)
    name = f"step-{step:06d}"
    temporary = parent / unfinished(name)
    temporary.mkdir()
    try:
        write_tensors(temporary / MODEL, model)
        write_tensors(temporary / OPTIMIZER, optimizer)
        write_synced(temporary / STATE, text.encode())
        contents = {}
        for file in FILES:
            sync(temporary / file)
            contents[file] = {"size": (temporary / file).stat().st_size, "sha256": _sha256(temporary / file)}
        manifest = {"schema": SCHEMA, "step": step, "files": contents}
        write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
        sync(temporary)
        earlier = [(attempt, path) for found, attempt, path in folders(parent) if found == step]  # newest first
        final = parent / (f"{name}.{1 + earlier[0][0]}" if earlier else name)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(parent)
    for _, path in earlier:
        remove(path)
    if earlier:
        final = final.rename(parent / name)
        sync(parent)
    return final


def prune(parent: Path, step: int, keep: int, pinned: Collection[int]) -> None:
    """Of the checkpoints up to ``step``, keep the ``keep`` newest and the pinned ones.

    Checkpoints with missing or truncated files do not count. Those after ``step`` are kept.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint must be kept, got keep={keep}")
    left = 0
    for found, _, path in folders(parent):
        if found > step:
            continue
        with suppress(Damaged):
            check_sizes(path, found)
            left += 1
            if left <= keep:
                continue
        if found not in pinned:
            remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint: rename it first, so that a partly removed one is not mistaken for a damaged one."""
    doomed = path.with_name(unfinished(path.name))
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files of a killed process in ``folder``. The caller holds the run's lock."""
    if not folder.is_dir():
        return
    with writing(str(folder)):
        for path in folder.iterdir():
            if path.name.startswith(UNFINISHED):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open(open_plain(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sizes(path: Path, step: int) -> JsonObject:
    """The manifest's entries for the three files, after all checks that do not read them."""
    if path.is_symlink():
        raise Damaged("it is a link, not a folder")
    try:
        manifest = parse_object(read_plain(path / MANIFEST))
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error})") from error
    if manifest.get("schema") != SCHEMA:
        raise Damaged(f"{MANIFEST} has schema {manifest.get('schema')!r}, this version reads {SCHEMA}")
    if manifest.get("step") != step:
        raise Damaged(f"{MANIFEST} is of step {manifest.get('step')!r}")
    contents = manifest.get("files")
    if not isinstance(contents, dict) or sorted(contents) != sorted(FILES):
        raise Damaged(f"{MANIFEST} does not list exactly {', '.join(FILES)}")
    for name, entry in contents.items():
        if not isinstance(entry, dict) or sorted(entry) != ["sha256", "size"]:
            raise Damaged(f"{MANIFEST} does not give size and SHA-256 of {name}")
        try:
            size = (path / name).lstat().st_size
        except OSError as error:
            raise Damaged(f"{name} is missing ({error.strerror})") from error
        if size != entry["size"]:
            raise Damaged(f"{name} has {size} bytes, its manifest says {entry['size']}")
    return contents


def _refuse_nonfinite(value: float) -> NoReturn:
    raise ValueError(f"the state of a checkpoint holds {value}, which JSON cannot; leave the key out or use None")
