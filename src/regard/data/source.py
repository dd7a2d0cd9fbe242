"""A source: a named text with a licence, files with SHA-256, and an ordered list of origins to fetch it from.

A source is fetched once into the user's cache, verified every time it is used, and only ever read: nothing
that came with it is imported or run.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from regard.data.cache import cache_folder, partial_folder, settle
from regard.errors import UserError


class Unavailable(Exception):
    """Why an origin could not give the files; the message completes "tried X: ..."."""


class Origin(Protocol):
    """One place to get a source's files from; `str(origin)` names it to a person."""

    def fetch(self, folder: Path) -> None:
        """Write the source's files into `folder`, or raise `Unavailable` with the reason."""
        ...


class SourceFile(NamedTuple):
    """A file of a source as it lies in the cache."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class GivenFile:
    """An origin: a file on this machine, handed over by the user."""

    path: Path
    name: str  # what the source calls it

    def __str__(self) -> str:
        return f"the file {self.path}"

    def fetch(self, folder: Path) -> None:
        """Copy the file; the source verifies it like any other."""
        if not self.path.is_file():
            raise Unavailable("there is no such file")
        if not os.access(self.path, os.R_OK):
            raise Unavailable("it may not be read")
        shutil.copyfile(self.path, folder / self.name)


@dataclass(frozen=True)
class Source:
    """A text that can be asked for by name."""

    name: str
    title: str
    licence: str
    files: tuple[SourceFile, ...]
    origins: tuple[Origin, ...]

    def cached(self, cache: Path | None = None) -> tuple[Path, ...] | None:
        """The verified files if the cache holds them all, else None."""
        folder = (cache or cache_folder()) / "sources" / self.name
        if any(self._fault(folder, file) for file in self.files):
            return None
        return tuple(folder / file.name for file in self.files)

    def fetch(self, cache: Path | None = None, given: Path | None = None) -> tuple[Path, ...]:
        """The verified files, from the cache or else from the first origin that has them.

        `given` is tried before the other origins: a copy of the (only) file that the user already has.
        """
        cache = cache or cache_folder()
        if found := self.cached(cache):
            return found
        origins = self.origins
        if given is not None:
            origins = (GivenFile(Path(given), self.files[0].name), *origins)
        tried = []
        for origin in origins:
            with partial_folder(cache) as partial:
                try:
                    origin.fetch(partial)
                except Unavailable as reason:
                    tried.append(f"{origin}: {reason}")
                    continue
                faults = [fault for file in self.files if (fault := self._fault(partial, file))]
                if faults:
                    tried.append(f"{origin}: {'; '.join(faults)}")
                    continue
                folder = cache / "sources" / self.name
                for file in self.files:
                    settle(partial / file.name, folder / file.name)
                return tuple(folder / file.name for file in self.files)
        raise UserError(
            f"cannot fetch '{self.name}' ({self.title}): tried {' | '.join(tried) or 'no origin at all'}. "
            f"Go online once so that it lands in {cache}, or use a text of your own: --data.path FILE"
        )

    def _fault(self, folder: Path, file: SourceFile) -> str | None:
        """What is wrong with the file as it lies in `folder`; None if it is what it should be."""
        path = folder / file.name
        if not path.is_file():
            return f"{file.name} is missing"
        found = sha256_of(path)
        return None if found == file.sha256 else f"{file.name} has SHA-256 {found} instead of {file.sha256}"


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
