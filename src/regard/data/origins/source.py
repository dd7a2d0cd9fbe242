"""A source: a named text with a license, a file with SHA-256, and an ordered list of origins to fetch it from.

A source is fetched once into the user's cache and verified before it is used. Nothing that came with it is imported
or run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.cache import cache_folder, partial_folder, settle
from regard.data.origins.file_facts import recall, remember, stat_files
from regard.data.origins.origin import Archive, LocalFile, Origin, Unavailable, sha256_of
from regard.errors import UserError


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
    origins: tuple[Origin, ...]
    languages: tuple[str, ...] = ()  # of sentence pairs; the file is a table (sentence_pairs.py). Empty: a text

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
        """The verified file, from the cache or else from the first origin that provides it.

        ``given`` is tried before the other origins: the user's copy of the file, or of an origin's archive.
        """
        cache = cache or cache_folder()
        if found := self.cached(cache):
            return found
        archives = tuple(origin for origin in self.origins if isinstance(origin, Archive))
        tried = []
        for origin in self.origins if given is None else (LocalFile(Path(given), archives), *self.origins):
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
        by_hand = [f"{self.file} ({self.size:,} bytes, SHA-256 {self.sha256})", *map(str, archives)]
        raise UserError(
            f"cannot fetch '{self.name}' ({self.title}): tried {' | '.join(tried) or 'no origin at all'}. "
            f"Go online once so that it is stored in {cache}; or copy {' or the archive of '.join(by_hand)} from "
            f"another machine and pass it: regard data get {self.name} --file FILE; or use your own text: "
            "--data.path FILE"
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
