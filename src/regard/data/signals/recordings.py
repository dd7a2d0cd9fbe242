"""Recordings: files of sound with a class or a text, from built-in sources, folders and tables of the user.

A source keeps the files as they came; they are decoded when they are read, since decoders differ in the last bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.origins.cache import cached
from regard.data.origins.progress import ProgressLine
from regard.data.records import read_records
from regard.errors import UserError

SUFFIXES = (".wav", ".ogg", ".oga", ".opus", ".flac", ".mp3", ".aiff", ".aif", ".au")
FORMS = ("sounds", "speech")  # classes, and texts; sources name one
_FORMAT = "samples 1"  # part of the cache's key: change it when the format changes
Samples = NDArray[np.int16]


class Recording(NamedTuple):
    """One file of sound."""

    name: str
    label: str  # its class, or what is said
    group: str  # recordings of a group are in one part of the data
    content: bytes | Path  # of the file, or where it is


def pack(recordings: Sequence[Recording]) -> bytes:
    """Recordings as a safetensors file, always the same bytes."""
    from safetensors.numpy import save

    contents = [one.content for one in recordings if isinstance(one.content, bytes)]
    rows = [(one.name, one.label, one.group, len(content)) for one, content in zip(recordings, contents, strict=True)]
    return save({"bytes": np.frombuffer(b"".join(contents), np.uint8)}, {"recordings": json.dumps(rows)})


def unpack(path: Path) -> list[Recording]:
    """The recordings of a file that ``pack`` wrote."""
    from safetensors import SafetensorError, safe_open

    found, place = [], 0
    try:
        with safe_open(path, framework="numpy") as file:
            content = file.get_tensor("bytes").tobytes()
            rows = json.loads((file.metadata() or {})["recordings"])
        for name, label, group, size in rows:
            found.append(Recording(name, label, group, content[place : place + size]))
            place += size
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no whole file of recordings ({error}); remove it, and it is fetched again"
        ) from error
    return found


def read_folder(folder: Path) -> list[Recording]:
    """The recordings of a folder with a folder for each class."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one that has a folder of recordings for each class")
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if len(labels) < 2:
        raise UserError(f"{folder} has {len(labels)} folders; it needs one for each of at least two classes")
    return [
        Recording(str(file), label, hashlib.sha256(file.read_bytes()).hexdigest(), file)
        for label in labels
        for file in sound_files(folder / label)
    ]


def read_table(path: Path) -> list[Recording]:
    """The recordings of a .tsv, .csv or .jsonl file with `file` (a path beside the table) and `text`."""
    found = []
    for number, row in read_records(path):
        file, text = row.get("file"), row.get("text")
        if not isinstance(file, str) or not isinstance(text, str) or not file:
            raise UserError(f"record {number} of {path} needs the columns file and text, and has {', '.join(row)}")
        place = (path.parent / file).resolve()
        if not place.is_relative_to(path.parent.resolve()):
            raise UserError(f"record {number} of {path} names {file}; files must be in the folder of the table")
        found.append(Recording(str(place), text, text.lower(), place))
    return found


def sound_files(folder: Path) -> list[Path]:
    """The files of sound below a folder in the order of their names."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise UserError(f"{folder} has no recording; recordings end with {', '.join(SUFFIXES)}")
    return files


def decode(recordings: Sequence[Recording], rate: int) -> list[Samples]:
    """The samples [T, 1] of each recording at a rate."""
    from regard.data.audio import decoded, read_sound

    found = []
    with ProgressLine("decoding recordings", len(recordings)) as progress:
        for one in recordings:
            given = one.content
            sound = read_sound(given, rate) if isinstance(given, Path) else decoded(given, Path(one.name), rate)
            found.append(to_samples(sound.numpy()))
            progress.advance(1)
    return found


def decode_once(recordings: Sequence[Recording], rate: int, key: str, cache: Path) -> list[Samples]:
    """As ``decode``, cached by ``key``, the SHA-256 of the source."""
    folder = cache / "samples" / hashlib.sha256(f"{_FORMAT}|{key}|{rate}".encode()).hexdigest()[:32]

    def read(folder: Path) -> list[Samples] | None:
        try:
            flat, lengths = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("samples", "lengths"))
        except (OSError, ValueError, EOFError):
            return None
        if len(lengths) != len(recordings) or flat.dtype != np.int16 or lengths.sum() != len(flat):
            return None
        return [part[:, None] for part in np.split(flat, np.cumsum(lengths)[:-1])]

    def write(folder: Path) -> None:
        made = decode(recordings, rate)
        np.save(folder / "samples.npy", np.concatenate(made)[:, 0])
        np.save(folder / "lengths.npy", np.array([len(one) for one in made]))

    return cached(folder, cache, read, write)


def to_samples(sound: NDArray[np.float32]) -> Samples:
    """Sound [N] in [-1, 1] as 16-bit samples [N, 1]."""
    return np.rint(np.clip(sound, -1, 1 - 2**-15) * 2**15).astype(np.int16)[:, None]
