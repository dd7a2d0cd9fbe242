"""The config of a run with its schema version: older versions are migrated, newer ones refused."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from regard import __version__
from regard.config.notation import LARGEST, parse_document
from regard.errors import UserError
from regard.runs import manifest
from regard.runs.disk import JsonObject
from regard.untrusted import read_plain, unreadable

#: The schema of config.toml that this version writes.
SCHEMA = 2
Migration = Callable[[JsonObject], JsonObject]


def _window_became_an_attention(document: JsonObject) -> JsonObject:
    """1 to 2: a GPT's ``window`` is a kind of ``attention``."""
    model = document.get("model")
    if isinstance(model, dict) and (window := model.pop("window", None)) is not None:
        model["attention"] = {"kind": "window", "size": window}
    elif isinstance(model, dict):
        model.pop("global_every", None)  # without a window it had no effect
    return document


#: From each older schema, the function to the next one.
MIGRATIONS: dict[int, Migration] = {1: _window_became_an_attention}


def stamp(config: str) -> bytes:
    """``config``, a TOML document, with the schema as its first line."""
    stamped = f"schema = {SCHEMA}\n{config}"
    tomllib.loads(stamped)  # raises for a document that is not TOML or already has the key
    return stamped.encode("utf-8")


def read_config(path: Path, written_by: str | None) -> JsonObject:
    """The config of a run in the current schema, without the schema key."""
    try:
        data = read_plain(path, LARGEST)
        document = parse_document(data.decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run: it has no {path.name}; give the folder of a run") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # bad TOML or bad UTF-8
        raise UserError(f"{path} is damaged ({error}); restore it from a copy") from error
    migrated = migrate(document, str(path), written_by)
    try:
        manifest.check(path.parent, path.name, data)  # last: other damage can be named more precisely
    except manifest.FileReplaced:
        return read_config(path, written_by)
    return migrated


def migrate(document: JsonObject, source: str, written_by: str | None = None) -> JsonObject:
    """``document`` migrated to the current schema, without the schema key."""
    found = document.pop("schema", None)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise UserError(f"{source} is damaged (its 'schema' is {found!r}, not a number from 1); restore it from a copy")
    if found > SCHEMA:
        needed = f"regard {written_by} or newer" if written_by else "a newer regard"
        raise UserError(
            f"{source} has schema {found}, and this regard ({__version__}) reads up to schema {SCHEMA}; "
            f"install {needed} to use this run"
        )
    for older in range(found, SCHEMA):
        if older not in MIGRATIONS:
            raise UserError(f"{source} has schema {found}, which this regard can no longer read; use an older regard")
        document = MIGRATIONS[older](document)
    return document
