"""`regard data`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.commands.common import CommandOptions
from regard.config import argument, option
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data import Source


@dataclass(frozen=True)
class DataOptions(CommandOptions):
    """Options of `regard data`."""

    action: Literal["list", "get", "verify", "remove"] = argument(
        "list", "list all texts, get one, verify those in the cache, or remove one from it"
    )
    name: str | None = argument(None, "the text; `verify` without it checks all of them")
    file: Path | None = option(None, "with `get`: a local copy of the text or its archive, instead of fetching it")


def data(options: DataOptions) -> int:
    """List the texts to train on; fetch, verify or remove one.

    Texts are fetched once into the cache (the folder REGARD_CACHE, if that is set) and verified by SHA-256.
    """
    from regard.data.sources import all_sources, find_source

    action, as_json = options.action, options.json
    chosen = None if options.name is None else find_source(options.name)
    if chosen is None and action in ("get", "remove"):
        raise UserError(f"which text? name it: regard data {action} NAME; `regard data` lists them")
    if options.file is not None and action != "get":
        raise UserError(f"--file goes with `regard data get NAME`, not with `regard data {action}`")
    sources = [chosen] if chosen else list(all_sources().values())
    if action == "list":
        return show(sources, as_json=as_json)
    if action == "verify":
        return verify(sources, named=chosen is not None, as_json=as_json)
    return get(sources[0], options.file, as_json=as_json) if action == "get" else remove(sources[0], as_json=as_json)


def show(sources: list[Source], *, as_json: bool) -> int:
    """Print a table of the texts. It compares names and sizes in the cache only; `verify` reads the files."""
    rows = [about(source) for source in sources]
    if as_json:
        print(json.dumps(rows))
        return 0
    from rich.console import Console
    from rich.table import Table

    from regard.data.origins.cache import cache_folder
    from regard.data.origins.progress import human_size

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("name", "title", "size", "cached", "origin", "license"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for row in rows:
        cached = {"yes": "[green]yes[/]", "no": "no", "damaged": "[red]damaged[/]"}[row["cached"]]
        origin = row["origins"][0].removeprefix("the ")
        table.add_row(row["name"], row["title"], human_size(row["size"]), cached, origin, row["license"])
    Console().print(table)
    print(f"cache: {cache_folder()}\ntrain on one: regard train --data.source NAME; on your own: --data.path FILE")
    print("pairs of sentences: regard train translate-transformer --data.source NAME")
    return 0


def about(source: Source) -> dict:
    """A text and its state in the cache, for JSON."""
    path = source.path()
    cached = "no" if not path.is_file() else "yes" if path.stat().st_size == source.size else "damaged"
    return {
        "name": source.name,
        "title": source.title,
        "license": source.license,
        "terms": source.terms,
        "size": source.size,
        "origins": [str(origin) for origin in source.origins],
        "cached": cached,
        "languages": list(source.languages),
        "files": [{"path": str(path), "sha256": source.sha256}],
    }


def get(source: Source, file: Path | None, *, as_json: bool) -> int:
    """Fetch a text into the cache, unless it is there."""
    path = source.fetch(given=file)
    if as_json:
        print(json.dumps(about(source)))
    else:
        print(f"{source.name}: {source.title}, {source.size:,} bytes, verified")
        print(f"{source.license}: {source.terms}")
        print(path)
    return 0


def verify(sources: list[Source], *, named: bool, as_json: bool) -> int:
    """Hash every file in the cache; the exit code is 1 if one is damaged or the named text is missing."""
    outcome = {}
    for source in sources:
        there = source.path().exists()
        faults = [fault] if there and (fault := source.fault()) else []
        outcome[source.name] = {"state": "damaged" if faults else "whole" if there else "absent", "faults": faults}
        if as_json:
            continue
        if faults:
            print(f"{source.name}: damaged ({'; '.join(faults)}); fetch it again: regard data get {source.name}")
        else:
            print(f"{source.name}: {'whole' if there else 'not in the cache'}")
    if as_json:
        print(json.dumps(outcome))
    states = [found["state"] for found in outcome.values()]
    return int("damaged" in states or (named and "absent" in states))


def remove(source: Source, *, as_json: bool) -> int:
    """Delete a text from the cache. Runs keep their own files."""
    folder = source.path().parent
    there = folder.is_dir()
    if there:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise UserError(f"cannot remove {folder}: {error.strerror or error}") from error
    if as_json:
        print(json.dumps({"name": source.name, "removed": there}))
    else:
        print(f"{source.name}: {'removed' if there else 'was not in the cache'}")
    return 0
