"""Compressed texts that unpack to far more than they hold, and broken ones: bounded memory, an error in a sentence."""

from __future__ import annotations

import gzip
import random
import resource
import zlib
from pathlib import Path

from bench.torture.room import TINY, Room, Tally

MEMORY = 3 << 30  # bytes of address space that a command may use
SIZE = 1 << 28  # what a bomb unpacks to


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` archives: bombs, truncated, with wrong checksums, of nothing, nested."""
    chance, tally = random.Random(seed), Tally("archives", "archives")
    room = Room(folder)
    whole = gzip.compress(room.text.encode())
    bomb = zeros(SIZE)
    made = [
        ("zeros", lambda: bomb),
        ("a bomb in an archive", lambda: gzip.compress(bomb)),
        ("truncated", lambda: whole[: chance.randrange(len(whole))]),
        ("damaged", lambda: flipped(whole, chance)),
        ("nothing", lambda: gzip.compress(b"")),
        ("not an archive", lambda: chance.randbytes(1000)),
        ("two members", lambda: whole + whole),
        ("garbage behind", lambda: whole + chance.randbytes(50)),
    ]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    for number in range(count):
        what, make = made[number % len(made)]
        name = f"text-{number}.txt.gz"
        (room.path / name).write_bytes(make())
        options = [name if word == "text.txt" else word for word in TINY]
        options += ["--train.steps", "1", "--data.validation", "0.0001", "--name", f"a{number}"]
        outcome = room.regard("train", *options, before=limited)
        tally.tried += 1
        finished = outcome.code == 0 and "%" in outcome.err  # long work with progress is no hang
        tally.judge(f"{what}, {name}", outcome._replace(hung=outcome.hung and not finished))
        (room.path / name).unlink()
    return tally


def zeros(size: int) -> bytes:
    """A gzip file of that many spaces, made without holding them."""
    packer, found = zlib.compressobj(9, wbits=31), []
    block = b" " * (1 << 20)
    for _ in range(size // len(block)):
        found.append(packer.compress(block))
    return b"".join([*found, packer.flush()])


def flipped(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
