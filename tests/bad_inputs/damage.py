"""What can happen to the files of a room before the command runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Change = Callable[[Path], None]
RUN = "runs/one"


def write(name: str, content: str | bytes) -> Change:
    """Give the room a file, in place of what was there."""

    def change(room: Path) -> None:
        path = room / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def folder(name: str, mode: int = 0o755) -> Change:
    """Give the room a folder."""

    def change(room: Path) -> None:
        (room / name).mkdir(parents=True)
        (room / name).chmod(mode)

    return change


def replace(name: str, old: str, new: str) -> Change:
    """Edit a file by hand."""

    def change(room: Path) -> None:
        text = (room / name).read_text()
        assert old in text
        (room / name).write_text(text.replace(old, new, 1))

    return change


def unlisted(change: Change) -> Change:
    """The same in a run of a version without manifests, which does not notice that a file has changed."""

    def both(room: Path) -> None:
        change(room)
        (room / RUN / "MANIFEST.json").unlink()

    return both


def remove(*names: str) -> Change:
    """Delete files."""

    def change(room: Path) -> None:
        for name in names:
            (room / name).unlink()

    return change


def checkpoints(damage: Callable[[Path], None]) -> Change:
    """Do the same to every checkpoint of the run."""

    def change(room: Path) -> None:
        found = list((room / RUN / "checkpoints").iterdir())
        assert found
        for path in found:
            damage(path)

    return change


def truncate(checkpoint: Path) -> None:
    """Half of the weights are gone."""
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def flip(checkpoint: Path) -> None:
    """One bit of the weights has changed."""
    weights = bytearray((checkpoint / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(weights)


def lose_manifest(checkpoint: Path) -> None:
    """Nobody knows any more what the files should be."""
    (checkpoint / "MANIFEST.json").unlink()


def vanish(checkpoint: Path) -> None:
    """The run was stopped before its first checkpoint."""
    for path in checkpoint.iterdir():
        path.unlink()
    checkpoint.rmdir()


def damage_second_record(room: Path) -> None:
    """The second line of the metrics is no JSON."""
    path = room / RUN / "metrics.jsonl"
    lines = path.read_text().splitlines()
    json.loads(lines[1])
    path.write_text("\n".join([lines[0], lines[1][:-4], *lines[2:]]) + "\n")
