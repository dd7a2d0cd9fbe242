"""The user's pip configuration: indexes, links, certificates, proxy."""

import ast
import os
import subprocess
import sys
from dataclasses import dataclass

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
    named = {key.removeprefix("PIP_").lower().replace("_", "-"): value for key, value in os.environ.items()
             if key.startswith("PIP_")}  # fmt: skip
    return "\n".join(f":env:.{key}={value!r}" for key, value in named.items())


def parse_pip_settings(listing: str) -> PipSettings:
    """Parse lines such as `global.index-url='...'`; a later section overrides an earlier one.

    >>> parse_pip_settings("global.find-links='a b'\\n:env:.find-links='c'").find_links
    ('c',)
    """
    values: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for line in listing.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        if section not in _SECTIONS:
            continue
        try:
            value = str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            continue
        rank = _SECTIONS.index(section)
        if rank >= ranks.get(key, -1):
            values[key], ranks[key] = value.strip(), rank
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
