"""`regard data`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.commands.common import CommandOptions
from regard.config import argument, option
from regard.errors import UserError
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.data import Source


CACHED = {"yes": "in the cache", "no": "not in the cache", "damaged": "damaged in the cache"}


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

    chosen = None if options.name is None else find_source(options.name)
    use = [
        "train on one: regard train --data.source NAME; on your own: --data.path FILE",
        "pairs of sentences: regard train translate-transformer --data.source NAME",
        "labelled text: regard train sentiment --data.source NAME (classes), tagging (tags), questions (answers)",
        "images: regard train digits, mnist, fashion-mnist or cifar10",
        "sounds: regard train spoken-language --data.source NAME; with texts (speech): regard train dutch-speech",
        "graphs: regard train karate or pubmed (nodes), umls (links), solubility (graphs) --data.source NAME",
    ]
    return act(options, "data", chosen, list(all_sources().values()), "\n".join(use))


def act(options: DataOptions, command: str, chosen: Source | None, sources: list[Source], use: str) -> int:
    """List, get, verify or remove: one source, or all; ``use`` is the end of the list."""
    action = options.action
    if chosen is None and action in ("get", "remove"):
        raise UserError(f"which one? name it: regard {command} {action} NAME; `regard {command}` lists them")
    if options.file is not None and action != "get":
        raise UserError(f"--file goes with `regard {command} get NAME`, not with `regard {command} {action}`")
    sources = [chosen] if chosen else sources
    if action == "verify":
        return verify(options, sources)
    if action == "list" and options.json:
        options.show([about(source) for source in sources], "")
    elif action == "list":
        print_table([about(source) for source in sources], use)
    elif action == "get":
        one, path = sources[0], sources[0].fetch(given=options.file)
        lines = [f"{one.name}: {one.title}, {one.size:,} bytes, verified", f"{one.license}: {one.terms}"]
        options.show(about(one), "\n".join([*lines, str(path)]))
    else:
        remove(options, sources[0])
    return 0


def print_table(rows: list[dict], use: str) -> None:
    """Print the sources. This compares names and sizes in the cache only; `verify` reads the files."""
    from regard.data.origins.cache import cache_folder
    from regard.data.origins.progress import human_size

    longest = max(len(row["name"]) for row in rows)
    for row in rows:
        origin = row["origins"][0].removeprefix("the ")
        print(f"{row['name']:{longest}}  {row['title']}")
        print(f"{'':{longest}}  {human_size(row['size'])}, {CACHED[row['cached']]}; {origin}; {row['license']}")
    print(f"cache: {cache_folder()}\n{use}")


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
        "origins": [str(source.origin)],
        "cached": cached,
        "languages": list(source.languages),
        "files": [{"path": str(path), "sha256": source.sha256}],
    }


def verify(options: DataOptions, sources: list[Source]) -> int:
    """Hash every file in the cache; the exit code is 1 if one is damaged or the named text is missing."""
    outcome = {}
    for source in sources:
        there = source.path().exists()
        with waiting(f"reading {source.name}"):
            faults = [fault] if there and (fault := source.fault()) else []
        outcome[source.name] = {"state": "damaged" if faults else "whole" if there else "absent", "faults": faults}
        state = "whole" if there else "not in the cache"
        if faults:
            state = f"damaged ({'; '.join(faults)}); fetch it again: regard {source.command} get {source.name}"
        if not options.json:
            print(f"{source.name}: {state}", flush=True)
    if options.json:
        options.show(outcome, "")
    states = [found["state"] for found in outcome.values()]
    return int("damaged" in states or (options.name is not None and "absent" in states))


def remove(options: DataOptions, source: Source) -> None:
    """Delete a text from the cache. Runs keep their own files."""
    folder = source.path().parent
    there = folder.is_dir()
    if there:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise UserError(f"cannot remove {folder}: {error.strerror or error}") from error
    text = f"{source.name}: {'removed' if there else 'was not in the cache'}"
    options.show({"name": source.name, "removed": there}, text)
