"""Relative paths of data in a run's config: found from any folder, also after the run and its data were moved."""

import glob
import os
from pathlib import Path

from regard.runs.disk import JsonObject

#: In environment.json: the folder in which the run was started, relative to the run's own.
FOLDER = "folder"
PATHS = ("path", "validation_path", "test_path")  # keys of [data]


def recorded_folder(root: Path) -> JsonObject:
    """The entry of environment.json for a run in the folder ``root``."""
    try:
        return {FOLDER: os.path.relpath(os.path.realpath(os.curdir), os.path.join(os.path.realpath(root), "run"))}
    except ValueError:  # another drive of Windows
        return {}


def resolve(config: JsonObject, run: Path, environment: JsonObject) -> JsonObject:
    """The config of a run with paths of data that can be opened from the current folder.

    A relative path counts from the folder in which the run was started; only if there is nothing, and something in the
    current folder, it counts from the latter.
    """
    data, folder = config.get("data"), environment.get(FOLDER)
    if not isinstance(data, dict) or not isinstance(folder, str) or "\0" in folder:
        return config
    home = os.path.realpath(run / folder)
    if home == os.path.realpath(os.curdir):
        return config
    given = {key: data[key] for key in PATHS if isinstance(data.get(key), str)}
    return {**config, "data": {**data, **{key: _find(path, home) for key, path in given.items()}}}


def _find(path: str, home: str) -> str:
    if os.path.isabs(path) or path.startswith("~"):
        return path
    here, there = _exists(glob.escape(os.curdir), path), _exists(glob.escape(home), path)
    return path if here and not there else os.path.join(home, path)


def _exists(folder: str, path: str) -> bool:
    """Whether there is a file or folder of that name, or one that begins with it, as the two files of pairs do."""
    return next(glob.iglob(os.path.join(folder, f"{path}*")), None) is not None
