"""An origin in Debian's archive.

`apt-get download` only downloads the package; without apt, or if it fails, it is downloaded directly from Debian.
Nothing is installed.
"""

import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from regard.data.origins.program import run_program
from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Archive, Unavailable, without_passwords, write_download

_TIMEOUT = 30.0  # seconds without a response
_ARCHIVE = "https://deb.debian.org/debian"


@dataclass(frozen=True)
class DebianPackage(Archive):
    """A Debian package for all architectures. ``members`` are paths below `/`."""

    folder: str = ""  # where the archive keeps it, below pool/

    def __str__(self) -> str:
        return f"the Debian package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified package, by apt or else from Debian directly."""
        folder.mkdir()
        reasons = []
        for method in (self._by_apt, self._by_http):
            try:
                return self.verified(method(folder))
            except Unavailable as reason:
                reasons.append(without_passwords(str(reason)))
        raise Unavailable(", ".join(reasons))

    def _by_apt(self, folder: Path) -> Path:
        apt = shutil.which("apt-get")
        if apt is None:
            raise Unavailable("apt-get is not installed")
        command = [apt, "download", "-qq", f"{self.package}={self.version}"]
        failed, stderr = run_program(command, folder, ProgressLine(f"fetching {self.package} by apt"))
        packages = list(folder.glob("*.deb"))
        if failed or len(packages) != 1:
            lines = [line.removeprefix("E: ") for line in stderr.splitlines() if line.startswith("E: ")]
            raise Unavailable(f"apt-get download ({lines[0] if lines else 'it failed without saying why'})")
        return packages[0]

    def _by_http(self, folder: Path) -> Path:
        path = folder / f"{self.package}_{self.version}_all.deb"
        path.unlink(missing_ok=True)
        url = f"{_ARCHIVE}/pool/{self.folder}/{path.name}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
                chunks = iter(lambda: response.read(1 << 18), b"")
                write_download(chunks, response.headers.get("content-length"), path)
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else None
            raise Unavailable(f"{_ARCHIVE} ({reason or error})") from error
        return path
