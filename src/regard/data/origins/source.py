"""A source: a named text with a licence, files with SHA-256, and an ordered list of origins to fetch it from.

A source is fetched once into the user's cache, verified before it is used, and only ever read: nothing that
came with it is imported or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from regard.data.origins.cache import cache_folder, partial_folder, settle
from regard.data.origins.file_facts import recall, remember, stat_files
from regard.data.origins.progress import ProgressLine
from regard.errors import UserError


class Unavailable(Exception):
    """Why an origin could not give the files; the message completes "tried X: ..."."""


class Origin(Protocol):
    """One place to get a source's files from; `str(origin)` names it to a person."""

    def fetch(self, folder: Path) -> None:
        """Write the source's files into `folder`, or raise `Unavailable` with the reason."""
        ...


@runtime_checkable
class Packed(Protocol):
    """An origin whose files come in one archive, which a person may bring along instead of the file itself."""

    @property
    def sha256(self) -> str:
        """Of the archive."""
        ...

    def unpack(self, archive: Path, folder: Path) -> None:
        """Write the source's files; the archive has been verified."""
        ...


class SourceFile(NamedTuple):
    """A file of a source as it lies in the cache."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class GivenFile:
    """An origin: a file on this machine, handed over by the user; the source's own file, or an archive it comes in."""

    path: Path
    name: str  # what the source calls it
    archives: tuple[Packed, ...] = ()

    def __str__(self) -> str:
        return f"the file {self.path}"

    def fetch(self, folder: Path) -> None:
        """Unpack the file, or copy it; the source verifies what comes of it like anything else."""
        if not self.path.is_file():
            raise Unavailable("there is no such file")
        if not os.access(self.path, os.R_OK):
            raise Unavailable("it may not be read")
        found = sha256_of(self.path) if self.archives else None
        for archive in self.archives:
            if archive.sha256 == found:
                return archive.unpack(self.path, folder)
        shutil.copyfile(self.path, folder / self.name)


@dataclass(frozen=True)
class Source:
    """A text that can be asked for by name."""

    name: str
    title: str
    licence: str  # its name
    terms: str  # what it covers, and where it is said
    files: tuple[SourceFile, ...]
    origins: tuple[Origin, ...]
    languages: tuple[
        str, ...
    ] = ()  # not a text but sentences in these languages: a table, as `sentence_pairs.py` reads it

    @property
    def size(self) -> int:
        """Bytes in the cache."""
        return sum(file.size for file in self.files)

    def folder(self, cache: Path | None = None) -> Path:
        """Where it lies in the cache, if it is there."""
        return (cache or cache_folder()) / "sources" / self.name

    def faults(self, cache: Path | None = None) -> list[str]:
        """What is wrong with the files in the cache, every byte of them read; empty: nothing."""
        return _faults(self.files, self.folder(cache), sha256_of)

    def cached(self, cache: Path | None = None) -> tuple[Path, ...] | None:
        """The verified files if the cache holds them all, else None.

        A file that was verified before and has not been touched since is not read again.
        """
        cache = cache or cache_folder()
        folder = self.folder(cache)
        if _faults(self.files, folder, lambda path: known_sha256(path, cache)):
            return None
        return tuple(folder / file.name for file in self.files)

    def fetch(self, cache: Path | None = None, given: Path | None = None) -> tuple[Path, ...]:
        """The verified files, from the cache or else from the first origin that has them.

        `given` is tried before the other origins: a copy that the user already has, of the (only) file or of the
        archive in which an origin has it.
        """
        cache = cache or cache_folder()
        if found := self.cached(cache):
            return found
        origins = self.origins
        if given is not None:
            archives = tuple(origin for origin in origins if isinstance(origin, Packed))
            origins = (GivenFile(Path(given), self.files[0].name, archives), *origins)
        tried = []
        for origin in origins:
            with partial_folder(cache) as partial:
                try:
                    origin.fetch(partial)
                except Unavailable as reason:
                    tried.append(f"{origin}: {reason}")
                    continue
                if faults := _faults(self.files, partial, sha256_of):
                    tried.append(f"{origin}: {'; '.join(faults)}")
                    continue
                for file in self.files:
                    settle(partial / file.name, self.folder(cache) / file.name)
                return tuple(self.folder(cache) / file.name for file in self.files)
        raise UserError(
            f"cannot fetch '{self.name}' ({self.title}): tried {' | '.join(tried) or 'no origin at all'}. "
            f"Go online once so that it lands in {cache}; or bring {self.by_hand()} from another machine and hand it "
            f"over: regard data get {self.name} --file FILE; or use a text of your own: --data.path FILE"
        )

    def by_hand(self) -> str:
        """What a person may hand over instead of fetching it, in words."""
        file = self.files[0]
        itself = f"{file.name} ({file.size:,} bytes, SHA-256 {file.sha256})"
        archives = [str(origin) for origin in self.origins if isinstance(origin, Packed)]
        return " or the archive of ".join([itself, *archives])


def _faults(files: tuple[SourceFile, ...], folder: Path, sha256: Callable[[Path], str]) -> list[str]:
    """What is wrong with the files as they lie in `folder`."""
    faults = []
    for file in files:
        path = folder / file.name
        if not path.is_file():
            faults.append(f"{file.name} is missing")
        elif (size := path.stat().st_size) != file.size:
            faults.append(f"{file.name} has {size:,} bytes instead of {file.size:,}")
        elif (found := sha256(path)) != file.sha256:
            faults.append(f"{file.name} has SHA-256 {found} instead of {file.sha256}")
    return faults


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read piece by piece."""
    digest = hashlib.sha256()
    with open(path, "rb") as file, ProgressLine(f"verifying {path.name}", path.stat().st_size) as progress:
        while piece := file.read(1 << 20):
            digest.update(piece)
            progress.advance(len(piece))
    return digest.hexdigest()


def known_sha256(path: Path, cache: Path) -> str:
    """As `sha256_of`, but a file that has not been touched since it was read is not read again."""
    question, before = f"sha256|{path.absolute()}", stat_files([path])
    known = recall(cache, question, before)
    if known and "sha256" in known:
        return known["sha256"]
    found = sha256_of(path)
    remember(cache, question, before, stat_files([path]), {"sha256": found})
    return found
