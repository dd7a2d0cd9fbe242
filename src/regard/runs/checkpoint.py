"""Checkpoints: written atomically, and verified by SHA-256 when read.

A checkpoint is a folder. Its files are written and synced under a temporary name, then the manifest with sizes and
SHA-256, then the folder is renamed and its parent synced. Whenever the process is killed, either the old or the new
state exists. One process writes the first schema, with a file for all tensors of a kind; several ranks the second one
(`shards`).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from regard.errors import UserError
from regard.runs import shards
from regard.runs.disk import UNFINISHED, JsonObject, parse_object, plain, sync, unfinished, write_synced, writing
from regard.runs.shards import ShardMap, read_map
from regard.runs.tensors import FileTensor, TensorFiles, Tensors, whole_tensors, write_tensors
from regard.untrusted import open_plain, read_plain

if TYPE_CHECKING:
    from torch import Tensor

FILES = MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "MANIFEST.json"
SCHEMAS = 1, 2
LARGEST = 2**28  # bytes of a manifest: the second schema lists the pieces of all ranks

# A step that is saved again gets ".1" while both exist, so that one of them exists at any time.
_NAME = re.compile(r"step-([0-9]{6,18})(?:\.([0-9]{1,18}))?")


#: Reads the files of a checkpoint, with sizes and SHA-256 by name; returns the first name that is not what it was.
Changed = Callable[[Path, JsonObject], str | None]


class Damaged(Exception):
    """A damaged checkpoint; the message names the damage."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. Tensors are read on demand; those that it does not hold are in ``base``."""

    step: int
    path: Path
    state: JsonObject
    base: "Checkpoint | None" = None
    split: ShardMap | None = None  # of the second schema: where the pieces of each tensor are

    @contextmanager
    def opened(self, kind: str) -> Iterator[dict[str, FileTensor]]:
        """The tensors of ``kind``, "model" or "optimizer", of which any part can be read while this context lasts."""
        with TensorFiles(self.path) as files:
            own = files.tensors(f"{kind}.safetensors") if self.split is None else self.split.stored(kind, files)
            if self.base is None or kind != shards.MODEL:
                yield own
                return
            with self.base.opened(kind) as others:
                yield others | own

    def model(self) -> dict[str, "Tensor"]:
        """The model's tensors, on the CPU."""
        with self.opened(shards.MODEL) as stored:
            return whole_tensors(stored)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's tensors; none of them is read."""
        with self.opened(shards.MODEL) as stored:
            return {name: tensor.shape for name, tensor in stored.items()}

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
        with self.opened(shards.OPTIMIZER) as stored:
            return whole_tensors(stored)


class Contents(NamedTuple):
    """What the manifest of a checkpoint lists."""

    files: JsonObject  # size and SHA-256 by name
    split: ShardMap | None  # None: the first schema


def folders(parent: Path) -> list[tuple[int, int, Path]]:
    """(step, attempt, folder) of all checkpoints in ``parent``, newest first, not verified."""
    found = []
    if parent.is_dir():
        for path in parent.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.append((int(match[1]), int(match[2] or 0), path))
    return sorted(found, reverse=True)


def changed(path: Path, files: JsonObject) -> str | None:
    """The first of a checkpoint's files that does not have the SHA-256 in its manifest."""
    return next((name for name, entry in files.items() if _sha256(path / name) != entry["sha256"]), None)


def verify(path: Path, step: int, changed: Changed = changed) -> Checkpoint:
    """Compare a checkpoint with its manifest; raise ``Damaged`` if they differ.

    ``changed`` reads the files: several ranks share the work.
    """
    files, split = check_sizes(path, step)
    try:
        name = changed(path, files)
    except OSError as error:
        raise Damaged(f"{Path(error.filename or path).name} cannot be read ({error.strerror})") from error
    if name is not None:
        raise Damaged(f"{name} does not have the SHA-256 in its manifest")
    try:
        state = parse_object(read_plain(path / STATE))
    except (OSError, ValueError) as error:
        raise Damaged(f"{STATE} cannot be read ({error})") from error
    base = None if (earlier := state.get("base")) is None else _base(path, step, earlier, changed)
    return Checkpoint(step, path, state, base, split)


def _base(path: Path, step: int, base: object, changed: Changed) -> Checkpoint:
    """The earlier checkpoint, in the same folder, with the tensors that do not change."""
    if type(base) is not int or not 0 <= base < step:
        raise Damaged(f"its base is {base!r}, which is no earlier step")
    try:
        return verify(path.with_name(f"step-{base:06d}"), base, changed)
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
    temporary = begin(parent, step)
    try:
        entries = {}
        for name, tensors in ((MODEL, model), (OPTIMIZER, optimizer)):
            write_tensors(temporary / name, tensors)
            sync(temporary / name)
            entries[name] = _entry(temporary / name)
        return finish(temporary, step, {"schema": 1, "files": entries}, state)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def begin(parent: Path, step: int) -> Path:
    """A temporary folder for the files of a checkpoint."""
    if step < 0:
        raise ValueError(f"a checkpoint's step is >= 0, got {step}")
    parent.mkdir(exist_ok=True)
    temporary = parent / unfinished(f"step-{step:06d}")
    temporary.mkdir()
    return temporary


def finish(temporary: Path, step: int, manifest: JsonObject, state: Mapping[str, object]) -> Path:
    """Make a checkpoint of a folder with synced tensor files, which ``manifest`` lists; replace one of the same step.

    If this fails before the folder has its name, the folder is left to the caller.
    """
    parent, name = temporary.parent, f"step-{step:06d}"
    text = json.dumps(plain(dict(state), _refuse_nonfinite, "state"), indent=1, allow_nan=False)
    write_synced(temporary / STATE, text.encode())
    files = {**manifest["files"], STATE: _entry(temporary / STATE)}
    indent = 1 if manifest["schema"] == 1 else None  # the second schema lists many pieces
    text = json.dumps({**manifest, "step": step, "files": files}, indent=indent)
    write_synced(temporary / MANIFEST, text.encode())
    sync(temporary)
    earlier = [(attempt, path) for found, attempt, path in folders(parent) if found == step]  # newest first
    final = parent / (f"{name}.{1 + earlier[0][0]}" if earlier else name)
    os.rename(temporary, final)
    sync(parent)
    for _, path in earlier:
        remove(path)
    if earlier:
        final = final.rename(parent / name)
        sync(parent)
    return final


def _entry(path: Path) -> JsonObject:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


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


def check_sizes(path: Path, step: int) -> Contents:
    """What the manifest lists, after all checks that do not read the other files."""
    if path.is_symlink():
        raise Damaged("it is a link, not a folder")
    try:
        manifest = parse_object(read_plain(path / MANIFEST, LARGEST))
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error})") from error
    if (schema := manifest.get("schema")) not in SCHEMAS or type(schema) is not int:
        raise Damaged(f"{MANIFEST} has schema {schema!r}, this version reads {' and '.join(map(str, SCHEMAS))}")
    if manifest.get("step") != step:
        raise Damaged(f"{MANIFEST} is of step {manifest.get('step')!r}")
    try:
        split = read_map(manifest) if schema == 2 else None
    except ValueError as error:
        raise Damaged(f"{MANIFEST}: {error}") from error
    contents = _check_files(path, manifest.get("files"), split)
    for name, size in ({} if split is None else split.sizes()).items():
        if size > contents[name]["size"]:
            raise Damaged(f"{name} is smaller than its pieces in {MANIFEST}")
    return Contents(contents, split)


def _check_files(path: Path, files: object, split: ShardMap | None) -> JsonObject:
    """The entries of a checkpoint's files, which have the names and sizes that they should have."""
    wanted = FILES if split is None else (*split.files(), STATE)
    if not isinstance(files, dict) or sorted(files) != sorted(wanted):
        of = ", ".join(FILES) if split is None else f"{STATE} and two files of each of {split.ranks} ranks"
        raise Damaged(f"{MANIFEST} does not list exactly {of}")
    for name, entry in files.items():
        if not isinstance(entry, dict) or sorted(entry) != ["sha256", "size"] or type(entry["size"]) is not int:
            raise Damaged(f"{MANIFEST} does not give size and SHA-256 of {name}")
        try:
            size = (path / name).lstat().st_size
        except OSError as error:
            raise Damaged(f"{name} is missing ({error.strerror})") from error
        if size != entry["size"]:
            raise Damaged(f"{name} has {size} bytes, its manifest says {entry['size']}")
    return files


def _refuse_nonfinite(value: float) -> NoReturn:
    raise ValueError(f"the state of a checkpoint holds {value}, which JSON cannot; leave the key out or use None")
