"""A source: a named text with a license, files with SHA-256, and an ordered list of origins to fetch them from.

A source is fetched once into the user's cache and verified before it is used. Nothing that came with it is imported
or run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.data.origins.cache import cache_folder, partial_folder, settle
from regard.data.origins.file_facts import recall, remember, stat_files
from regard.data.origins.origin import Archive, GivenFile, Origin, Unavailable, sha256_of
from regard.errors import UserError


class SourceFile(NamedTuple):
    """A file of a source, as stored in the cache."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Source:
    """A text that can be chosen by name."""

    name: str
    title: str
    license: str  # its name
    terms: str  # what the license covers, and where that is stated
    files: tuple[SourceFile, ...]
    origins: tuple[Origin, ...]
    languages: tuple[str, ...] = ()  # of sentence pairs; the file is a table (sentence_pairs.py). Empty: a text

    @property
    def size(self) -> int:
        """Bytes in the cache."""
        return sum(file.size for file in self.files)

    def folder(self, cache: Path | None = None) -> Path:
        """Its folder in the cache, whether it exists or not."""
        return (cache or cache_folder()) / "sources" / self.name

    def paths(self, cache: Path | None = None) -> tuple[Path, ...]:
        """Its files in the cache, whether they exist or not."""
        return tuple(self.folder(cache) / file.name for file in self.files)

    def faults(self, cache: Path | None = None) -> list[str]:
        """What is wrong with the cached files, after reading every byte; empty: nothing."""
        return _faults(self.files, self.folder(cache), sha256_of)

    def cached(self, cache: Path | None = None) -> tuple[Path, ...] | None:
        """The verified files if all are in the cache, else None.

        A file that was verified before and has not changed since is not read again.
        """
        cache = cache or cache_folder()
        if _faults(self.files, self.folder(cache), lambda path: known_sha256(path, cache)):
            return None
        return self.paths(cache)

    def fetch(self, cache: Path | None = None, given: Path | None = None) -> tuple[Path, ...]:
        """The verified files, from the cache or else from the first origin that provides them.

        ``given`` is tried before the other origins: the user's copy of the (only) file, or of an origin's archive.
        """
        cache = cache or cache_folder()
        if found := self.cached(cache):
            return found
        origins = self.origins if given is None else (self._given(given), *self.origins)
        tried = []
        for origin in origins:
            with partial_folder(cache) as partial:
                try:
                    origin.fetch(partial)
                    faults = _faults(self.files, partial, sha256_of)
                except Unavailable as reason:
                    faults = [str(reason)]
                if faults:
                    tried.append(f"{origin}: {'; '.join(faults)}")
                    continue
                for path in self.paths(cache):
                    settle(partial / path.name, path)
                return self.paths(cache)
        raise UserError(
            f"cannot fetch '{self.name}' ({self.title}): tried {' | '.join(tried) or 'no origin at all'}. "
            f"Go online once so that it is stored in {cache}; or copy {self.by_hand()} from another machine and pass "
            f"it: regard data get {self.name} --file FILE; or use your own text: --data.path FILE"
        )

    def by_hand(self) -> str:
        """The files that a user may provide instead of downloading, for messages."""
        file = self.files[0]
        itself = f"{file.name} ({file.size:,} bytes, SHA-256 {file.sha256})"
        return " or the archive of ".join([itself, *map(str, self._archives())])

    def _given(self, path: Path) -> GivenFile:
        return GivenFile(Path(path), self.files[0].name, self._archives())

    def _archives(self) -> tuple[Archive, ...]:
        return tuple(origin for origin in self.origins if isinstance(origin, Archive))


def _faults(files: tuple[SourceFile, ...], folder: Path, sha256: Callable[[Path], str]) -> list[str]:
    """What is wrong with the files in ``folder``."""
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


def known_sha256(path: Path, cache: Path) -> str:
    """As ``sha256_of``, but a file that has not changed since it was last read is not read again."""
    key, before = f"sha256|{path.absolute()}", stat_files([path])
    known = recall(cache, key, before)
    if known and "sha256" in known:
        return known["sha256"]
    found = sha256_of(path)
    remember(cache, key, before, stat_files([path]), {"sha256": found})
    return found
