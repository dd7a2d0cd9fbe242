"""Every file of a run damaged in many ways, under every command: an error in a sentence, or the same answer."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from bench.torture.room import RUN, Room, Tally, answers

COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", RUN, "--json"),
    "generate": ("generate", RUN, "--prompt", "the", "--tokens", "12", "--seed", "1"),
    "evaluate": ("evaluate", RUN, "--json"),
    "doctor": ("doctor", RUN),
    "look": ("look", RUN, "--text", "the cat sat", "--out", "look.html"),
    "report": ("report", RUN),
    "prove": ("prove", RUN, "--claims", "finite,future", "--json"),
    "resume": ("resume", RUN, "--steps", "12"),
}
OUTSIDE = "precious.txt"  # a file outside the run that a link points to


def flip_bit(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) or 1)])


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(200))


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(_outside(path))


def _outside(path: Path) -> Path:
    return next(parent for parent in path.parents if (parent / OUTSIDE).exists()) / OUTSIDE


def swap_digits(path: Path, chance: random.Random) -> None:
    """Change a digit of a text file: another number, still valid syntax."""
    data = bytearray(path.read_bytes())
    places = [i for i, byte in enumerate(data[:100_000]) if 0x30 <= byte <= 0x39]
    if places:
        data[chance.choice(places)] = 0x30 + chance.randrange(10)
    path.write_bytes(data)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(flip_bit, truncate, empty, noise, remove, folder, pipe, device, link, swap_digits),
)


def attack(folder_: Path, count: int, seed: int) -> Tally:
    """``count`` damages, each under one command."""
    chance, tally = random.Random(seed), Tally("damages", "damaged files x commands")
    room = Room(folder_)
    room.train()
    pristine = room.pristine
    usual = {name: answers(_ask(room, command)) for name, command in COMMANDS.items()}
    precious = room.path / OUTSIDE
    precious.write_text("do not touch")
    files = [path.relative_to(pristine) for path in sorted(pristine.rglob("*")) if path.is_file()]
    plan = [(file, damage) for file in files for damage in DAMAGES]
    chance.shuffle(plan)
    refused = told = 0
    for number in range(count):
        (file, damage), (name, command) = plan[number % len(plan)], chance.choice(list(COMMANDS.items()))
        room.fresh()
        damage(room.path / "runs" / file, chance)
        changed = _bytes(room.path / "runs" / file) != _bytes(pristine / file)
        outcome = room.regard(*command)
        tally.tried += 1
        what = f"{damage.__name__} of {file}, {name}"
        if precious.read_text() != "do not touch":
            tally.add("lost", f"{what}: a file outside the run was changed")
            precious.write_text("do not touch")
        if not tally.judge(what, outcome):
            continue
        refused += outcome.code == 2
        if outcome.code == 0 and changed and answers(outcome.out) != usual[name]:
            if outcome.said or name in ("info", "report", "doctor", "look"):  # it said what it found
                told += 1
            else:
                tally.add("silent", what)
    tally.notes |= {"refused": refused, "another answer, with the reason": told}
    return tally


def _ask(room: Room, command: tuple[str, ...]) -> str:
    room.fresh()
    outcome = room.regard(*command)
    assert outcome.clean, f"{command}: {outcome.err}"
    return outcome.out


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None
