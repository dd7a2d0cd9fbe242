"""Files that try to run code, each with a canary: a file that the code would make. None of them may appear."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench.torture.room import RUN, Room, Tally

Payload = tuple[str, Callable[[Room], None], tuple[str, ...]]
GENERATE = ("generate", RUN, "--prompt", "the", "--tokens", "4")
REPORT = ("report", RUN, "--out", "report.html")


class _Touch:
    """Unpickled, this makes the canary."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return eval, (f"open({str(self.canary)!r}, 'w').close()",)


def pickled(canary: Path) -> Iterator[tuple[str, bytes]]:
    """A pickle in several wrappings."""
    for protocol in (0, 2, 4):
        yield f"pickle protocol {protocol}", pickle.dumps(_Touch(canary), protocol=protocol)
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(1), "more": _Touch(canary)}, buffer)
    yield "torch.save", buffer.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Touch(canary)))
    yield "zip with a pickle", packed.getvalue()


def payloads(canary: Path, pristine: Path) -> Iterator[Payload]:
    """Name, what it does to the run, and the command that meets it."""
    files = [path.relative_to(pristine / "one") for path in sorted((pristine / "one").rglob("*")) if path.is_file()]
    for name, data in pickled(canary):
        for file in files:
            yield f"{name} as {file}", _write(file, data), GENERATE
        for extra in ("model.pt", "model.bin", "optimizer.pkl"):
            yield f"{name} beside, {extra}", _write(Path(extra), data), GENERATE
    touch = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("parts.py", "sitecustomize.py", "conftest.py", "regard.py", "torch.py", "my_parts.py", "__init__.py"):
        yield f"Python file {name} in the run", _write(Path(name), touch.encode()), GENERATE
    for number, line in enumerate(
        (f"with = ['{RUN}/evil.py']", "[tool.regard]\nparts = ['evil.py']", "parts = 'evil.py'")
    ):
        yield f"parts named in the config, {number}", _evil(line, touch), GENERATE
    expressions = (
        "__import__('os').system('touch {}')",
        "lambda: open('{}', 'w')",
        "(lambda q, k: open('{}','w'))(1,2)",
    )
    for one in expressions:
        given = ("mask", one.format(canary))
        yield f"a mask expression: {one}", lambda room: None, given
    markup = ("<script>CANARY</script>", "<img src=x onerror=CANARY>", "</style><script>CANARY</script>", '"><b>CANARY')
    for one in markup:
        yield f"markup in a sample: {one}", _sample(one), REPORT
        yield f"markup in the environment: {one}", _environment(one), REPORT


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` payloads."""
    tally = Tally("payloads", "files with code or markup")
    room = Room(folder)
    room.train()
    canary = room.path / "canary"
    every = list(payloads(canary, room.pristine))
    random.Random(seed).shuffle(every)
    for what, change, command in every[:count]:
        room.fresh()
        page = room.path / "report.html"
        page.unlink(missing_ok=True)
        change(room)
        outcome = room.regard(*command)
        tally.tried += 1
        tally.judge(what, outcome)
        if canary.exists():
            tally.add("executed", what)
            canary.unlink()
        if page.exists() and any(one in page.read_text() for one in ("<script>CANARY", "<img src=x", "<b>CANARY")):
            tally.add("executed", f"{what}: markup in the page")
    return tally


def _write(file: Path, data: bytes) -> Callable[[Room], None]:
    def change(room: Room) -> None:
        (room.run / file).write_bytes(data)

    return change


def _evil(line: str, touch: str) -> Callable[[Room], None]:
    def change(room: Room) -> None:
        (room.run / "evil.py").write_text(touch)
        (room.path / "evil.py").write_text(touch)
        config = room.run / "config.toml"
        config.write_text(f"{line}\n{config.read_text()}" if "[" not in line[:1] else f"{config.read_text()}\n{line}\n")

    return change


def _sample(text: str) -> Callable[[Room], None]:
    def change(room: Room) -> None:
        record = {"step": 9, "text": text, "prompt": text}
        with (room.run / "samples.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    return change


def _environment(text: str) -> Callable[[Room], None]:
    def change(room: Room) -> None:
        file = room.run / "environment.json"
        found = json.loads(file.read_text())
        file.write_text(json.dumps({name: text if isinstance(value, str) else value for name, value in found.items()}))

    return change
