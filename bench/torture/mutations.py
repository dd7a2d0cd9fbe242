"""Thousands of mutated command lines, configs, texts, tokenizers and checkpoints: an error in a sentence, or work."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bench.torture.room import RUN, TINY, Room, Tally, answers

GENERATE = ("generate", RUN, "--prompt", "the", "--tokens", "8", "--seed", "1")
SAFE = ("info", "generate", "evaluate", "describe", "recipes", "data", "mask", "completion", "translate", "look")
PIECES = ("0", "-1", "1e309", "nan", "true", "none", "", " ", "9" * 40, "\x00", "\u202e", "../..", "{}", "[]", "'", '"')
PIECES += ("[[", "]]", "=", "kind", "inf", "0x10", "1_0", "é", "\n", "\t", "#", "/dev/null", "text.txt", RUN, "--", "-")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to four changes: bytes flipped, cut, doubled, moved, or replaced by something awkward."""
    for _ in range(chance.randrange(1, 5)):
        a, b = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        b = min(b, a + 40)
        piece = chance.choice(PIECES).encode()
        data = chance.choice(
            (
                data[:a] + bytes([chance.randrange(256)]) + data[a + 1 :],
                data[:a] + data[b:],
                data[:a] + data[a:b] * chance.choice((2, 3, 500)) + data[b:],
                data[:a] + piece + data[b:],
                data[:a] + piece + data[a:],
            )
        )
    return data


def config(room: Room, chance: random.Random) -> tuple[str, ...]:
    """A TOML experiment, described."""
    (room.path / "mutated.toml").write_bytes(mutated(_experiment(room), chance))
    return "describe", "mutated.toml"


def command_line(room: Room, chance: random.Random) -> tuple[str, ...]:
    """Words of real commands and awkward ones."""
    words = [*TINY, "--model", "gpt2", "--model.position", "rotary", "--json", "--seed", "--tokens", "--step", "-h"]
    words += ["--model.attention", "window", "--model.attention.size", "--data.tokenizer", "bpe", "--file", *PIECES]
    chosen = [chance.choice(words) for _ in range(chance.randrange(0, 7))]
    return chance.choice(SAFE), *("".join(c for c in word if c != "\x00") for word in chosen)


def text(room: Room, chance: random.Random) -> tuple[str, ...]:
    """A text of bytes, evaluated."""
    data = mutated(room.text.encode()[: chance.choice((0, 1, 20, 2000))], chance)
    name = chance.choice(("mutated.txt", "mutated.jsonl", "mutated.txt.gz", "mutated.parquet"))
    (room.path / name).write_bytes(data)
    return "evaluate", RUN, "--file", name, "--json"


def tokenizer(room: Room, chance: random.Random) -> tuple[str, ...]:
    return _in_run(room, "tokenizer.json", chance)


def run_config(room: Room, chance: random.Random) -> tuple[str, ...]:
    return _in_run(room, "config.toml", chance)


def checkpoint(room: Room, chance: random.Random) -> tuple[str, ...]:
    newest = max((room.run / "checkpoints").iterdir(), key=lambda path: path.name)
    file = chance.choice(sorted(path for path in newest.iterdir() if path.is_file()))
    return _in_run(room, str(file.relative_to(room.run)), chance)


def metrics(room: Room, chance: random.Random) -> tuple[str, ...]:
    _in_run(room, "metrics.jsonl", chance)
    return "info", RUN, "--json"


KINDS: dict[Callable[[Room, random.Random], tuple[str, ...]], int] = {
    config: 4, command_line: 5, text: 2, tokenizer: 3, run_config: 2, checkpoint: 3, metrics: 1,
}  # fmt: skip
ANSWERING = (tokenizer, run_config, checkpoint)


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` mutations; those of a run's files must not change what it generates without a word."""
    chance, tally = random.Random(seed), Tally("mutations", "mutated inputs")
    room = Room(folder)
    room.train()
    usual = answers(room.regard(*GENERATE).out)
    counts: dict[str, int] = {}
    for number in range(count):
        kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        if kind in (*ANSWERING, metrics):
            room.fresh()
        command = kind(room, chance)
        outcome = room.regard(*command)
        tally.tried += 1
        counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
        what = f"{kind.__name__} {number} of seed {seed}: {' '.join(command)[:200]!r}"
        clean = tally.judge(what, outcome)
        answered = clean and kind in ANSWERING and outcome.code == 0 and not outcome.said
        if answered and answers(outcome.out) != usual:
            tally.add("silent", what)
    tally.notes |= counts
    return tally


def _experiment(room: Room) -> bytes:
    whole = (room.pristine / room.run.name / "config.toml").read_text()  # the run's own may be mutated by now
    lines = [line for line in whole.splitlines() if not line.startswith("schema")]
    return "\n".join(lines).encode()


def _in_run(room: Room, name: str, chance: random.Random) -> tuple[str, ...]:
    file = room.run / name
    file.write_bytes(mutated(file.read_bytes(), chance))
    return GENERATE
