"""An origin in Debian's archive.

`apt-get download` only downloads the package; nothing is installed.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.program import run_program
from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Archive, Unavailable, without_passwords


@dataclass(frozen=True)
class DebianPackage(Archive):
    """A Debian package for all architectures. ``members`` are paths below `/`."""

    def __str__(self) -> str:
        return f"the Debian package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified package."""
        folder.mkdir()
        return self.verified(self._by_apt(folder))

    def _by_apt(self, folder: Path) -> Path:
        apt = shutil.which("apt-get")
        if apt is None:
            raise Unavailable("apt-get is not installed: this data comes with Debian and Ubuntu")
        command = [apt, "download", "-qq", f"{self.package}={self.version}"]
        failed, stderr = run_program(command, folder, ProgressLine(f"fetching {self.package} by apt"))
        packages = list(folder.glob("*.deb"))
        if failed or len(packages) != 1:
            lines = [line.removeprefix("E: ") for line in stderr.splitlines() if line.startswith("E: ")]
            reason = without_passwords(lines[0]) if lines else "it failed without saying why"
            raise Unavailable(f"apt-get download ({reason})")
        return packages[0]
