"""The files of the user's own text: one, those of a folder, or the matches of a pattern; and the parts of a folder."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from regard.data.texts.formats import form, opened, unreadable
from regard.errors import UserError

_SNIFFED = 8192  # bytes at the start of a file; a NUL among them means binary, as for git and grep

#: Suffixes of files that are not plain text, even if their first bytes contain no NUL.
NOT_TEXT = frozenset(
    """
    .7z .aac .avi .bin .bmp .br .bz2 .class .ckpt .dat .db .dll .doc .docx .dylib .eot .epub .exe .flac .gif .h5
    .ico .jar .jpeg .jpg .lz4 .m4a .mkv .mobi .mov .mp3 .mp4 .npy .npz .o .odt .ogg .onnx .otf .pdf .pickle
    .pkl .png .ppt .pptx .pt .pth .pyc .rar .safetensors .so .sqlite .svgz .tar .tgz .tif .tiff .ttf .wasm .wav .webm
    .webp .whl .woff .woff2 .xls .xlsx .xz .zip
    """.split()  # noqa: SIM905 (a list would take 70 lines)
)

#: The words in the names of files and folders that say which part they are.
_PART_WORDS = {
    "train": "train", "training": "train", "valid": "validation", "validation": "validation", "val": "validation",
    "dev": "validation", "test": "test",
}  # fmt: skip
_ABOUT = frozenset(("readme", "license", "licence", "copying", "citation", "notice"))  # files about a dataset


class FoundTexts(NamedTuple):
    """The text files of a path."""

    files: tuple[Path, ...]  # in reading order
    skipped: dict[str, int]  # number of skipped files by reason: "hidden", "binary", "not text by their suffix"


def find_texts(path: str) -> FoundTexts:
    """The files of a path: one file, all texts below a folder, or the matches of a pattern.

    In a folder, files that are hidden or not text are skipped and counted; a file that is named, by itself or by a
    pattern, is always included, so that reading it raises an error if it is not text.
    """
    given = Path(path).expanduser()
    if given.is_dir():
        found = _below(given)
        if not found.files:
            raise UserError(
                f"there is no text file below the folder {path}{skipped_words(found.skipped)}; give another"
            )
        return found
    if given.is_file() or not any(sign in path for sign in "*?["):
        if given.exists() and not given.is_file():
            raise UserError(
                f"{path} can be read only once, like a pipe; save it as a file first: cat {path} > text.txt"
            )
        return FoundTexts((given,), {})
    matches = (Path(match) for match in glob.glob(str(given), recursive=True))
    files = _each_once([match for match in matches if match.is_file()])
    if not files:
        raise UserError(f"no file matches the pattern {path!r}; check it with: ls {path}")
    return FoundTexts(files, {})


def own_parts(folder: Path, files: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    """The files of a folder by part, if it has train and validation or test files and no others; else empty.

    A part is a word of a file's name or of a folder's above it: `train.txt`, `wiki.valid.tokens`,
    `test-00000-of-00001.parquet`, `train/01.txt`. A README or a license belongs to no part.
    """
    parts: dict[str, tuple[Path, ...]] = {"train": (), "validation": (), "test": ()}
    for file in files:
        names = file.relative_to(folder).parts
        found = [part for name in names if (part := _part(name))]
        if found:
            parts[found[0]] += (file,)
        elif names[-1].partition(".")[0].lower() not in _ABOUT:
            return {}
    parts = {part: chosen for part, chosen in parts.items() if chosen}
    return parts if "train" in parts and len(parts) > 1 else {}


def _part(name: str) -> str | None:
    """The part that a name says; None if it says none or several.

    >>> _part("wiki.valid.tokens"), _part("test_2016.txt"), _part("train-test.txt"), _part("latest.txt")
    ('validation', 'test', None, None)
    """
    found = {_PART_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in _PART_WORDS}
    return found.pop() if len(found) == 1 else None


def skipped_words(skipped: dict[str, int]) -> str:
    """The skipped files, for messages.

    >>> skipped_words({"hidden": 2, "binary": 1})
    ' (3 skipped: 2 hidden, 1 binary)'
    """
    if not skipped:
        return ""
    return f" ({sum(skipped.values())} skipped: {', '.join(f'{count} {why}' for why, count in skipped.items())})"


def _below(folder: Path) -> FoundTexts:
    files: list[Path] = []
    skipped: Counter[str] = Counter()

    def stop(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error) from error

    for place, folders, names in os.walk(folder, onerror=stop):
        skipped["hidden"] += sum(name.startswith(".") for name in [*folders, *names])
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(place, name) for name in names if not name.startswith(".")):
            if reason := _skip_reason(file):
                skipped[reason] += 1
            else:
                files.append(file)
    return FoundTexts(_each_once(files), {why: count for why, count in sorted(skipped.items()) if count})


def _each_once(files: Iterable[Path]) -> tuple[Path, ...]:
    """Sorted; a file that is linked several times is read once, at the path nearest to the root."""
    places: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: (len(file.parts), file.as_posix())):
        places.setdefault(os.path.realpath(file), file)
    return tuple(sorted(places.values(), key=Path.as_posix))


def _skip_reason(file: Path) -> str | None:
    """Why a file in a folder is skipped; None if its name and first bytes look like text."""
    if file.suffix.lower() in NOT_TEXT:
        return "not text by their suffix"
    if not file.is_file():  # a pipe, a socket, a link to nothing
        return "no regular files"
    if form(file) == ".parquet":
        return None
    with opened(file) as start:
        return "binary" if b"\0" in start.read(_SNIFFED) else None
