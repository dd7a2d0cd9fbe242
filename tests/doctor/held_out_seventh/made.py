"""Texts, pairs and labelled texts that are made for the runs; all of them are functions of a seed."""

from __future__ import annotations

import random
from pathlib import Path

SYLLABLES = "ba do ki lu me no pa ri su ta ve zo fi ga hu".split()  # noqa: SIM905 (shorter)
GOOD = ("loved", "adored", "praised", "recommend", "treasure", "enjoyed")
BAD = ("hated", "despised", "regret", "returned", "refunded", "detested")


def words(count: int, seed: int) -> list[str]:
    """Different words of two to four syllables."""
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found["".join(draw.choices(SYLLABLES, k=draw.randint(2, 4)))] = None
    return list(found)


def pairs(path: Path, *, shift: int = 0, count: int = 4000) -> Path:
    """Sentences and their word-by-word translations with the last word first, a tab between the two.

    ``shift``: the translations are those of the sentence so many lines before, as after a line was lost in one file.
    """
    draw, source, target = random.Random(1), words(120, 2), words(120, 3)
    chosen = [[draw.randrange(120) for _ in range(draw.randint(3, 10))] for _ in range(count)]
    ours = [" ".join(source[n] for n in one) for one in chosen]
    theirs = [" ".join(target[n] for n in reversed(one)) for one in chosen]
    theirs = theirs[-shift:] + theirs[:-shift] if shift else theirs
    path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(ours, theirs, strict=True)))
    return path


def reviews(path: Path, *, count: int = 1500, share: float = 0.5) -> Path:
    """Reviews of 40 to 60 words of filler, the verdict at the end; ``share`` of them are good."""
    draw, filler = random.Random(4), words(80, 5)
    lines = ["text,label"]
    for _ in range(count):
        good = draw.random() < share
        text = " ".join(draw.choices(filler, k=draw.randint(40, 60)))
        lines.append(f"{text} in the end i {draw.choice(GOOD if good else BAD)} it,{'good' if good else 'bad'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def log_lines(path: Path, count: int = 6000) -> Path:
    """A server's log: the same few sentences with other numbers."""
    draw = random.Random(6)
    forms = (
        "INFO request {} from 10.0.{}.{} took {} ms",
        "WARN worker {} queue {} waits {} of {}",
        "INFO saved block {} {} {} {}",
    )
    path.write_text(
        "".join(draw.choice(forms).format(*(draw.randrange(256) for _ in range(4))) + "\n" for _ in range(count))
    )
    return path


def noise(path: Path, count: int = 200_000) -> Path:
    """Characters drawn independently: nothing but their frequencies can be learned."""
    draw = random.Random(7)
    path.write_text("".join(draw.choices("abcdefghijklmnop ", weights=range(1, 18), k=count)))
    return path


def prose(path: Path, count: int = 30_000, seed: int = 8) -> Path:
    """Made sentences: each word is followed by one of three others."""
    draw, known = random.Random(seed), words(300, seed)
    after = {word: draw.sample(known, 3) for word in known}
    text, word = [], known[0]
    for number in range(count):
        text.append(word + (".\n" if number % 9 == 8 else ""))
        word = draw.choice(after[word])
    path.write_text(" ".join(text))
    return path
