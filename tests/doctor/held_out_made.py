"""Texts, pairs and labelled texts that are made for the runs; all of them are functions of a seed."""

from __future__ import annotations

import math
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


def reviews(
    path: Path, *, count: int = 1500, share: float = 0.5, doubt: float = 0.0, length: tuple[int, int] = (40, 60)
) -> Path:
    """Reviews of 40 to 60 words of filler, the verdict at the end; ``share`` of them are good.

    ``doubt``: this share has a verdict of the other class; ``length``: the numbers of words of filler.
    """
    draw, filler = random.Random(4), words(80, 5)
    lines = ["text,label"]
    for _ in range(count):
        good = draw.random() < share
        text = " ".join(draw.choices(filler, k=draw.randint(*length)))
        meant = good if not doubt or draw.random() >= doubt else not good
        lines.append(f"{text} in the end i {draw.choice(GOOD if meant else BAD)} it,{'good' if good else 'bad'}")
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


def names(path: Path, *, seed: int, lower: bool = False, count: int = 12_000) -> Path:
    """Made sentences with a name after every other word; names and sentences begin with a capital letter.

    ``lower``: all of it in lower case.
    """
    draw, known, people = random.Random(seed), words(200, 9), words(60, 10)
    text = ""
    for number in range(count):
        word = draw.choice(people).capitalize() if number % 2 else draw.choice(known)
        text += (word.capitalize() if number % 8 == 0 else word) + (". " if number % 8 == 7 else " ")
    path.write_text(text.lower() if lower else text)
    return path


def opinions(path: Path, first: int, last: int, copies: int) -> Path:
    """The texts number ``first`` to ``last`` of a list, in ``copies`` with two neighbors exchanged.

    What a text says has nothing to do with its label.
    """
    lines = ["text,label"]
    for number in range(first, last):
        draw, known = random.Random(number), words(80, 5)
        text, label = draw.choices(known, k=12), draw.choice(("good", "bad"))
        for _ in range(copies):
            place, other = draw.randrange(11), list(text)
            other[place : place + 2] = text[place : place + 2][::-1] if copies > 1 else text[place : place + 2]
            lines.append(f"{' '.join(other)},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def molecules(path: Path, *, count: int = 1200, unit: float = 1.0) -> Path:
    """Chains of carbon, oxygen and nitrogen with a value that their atoms add up to, in a unit of this size."""
    draw, worth = random.Random(11), {"C": 0.8, "O": -1.5, "N": -1.0}
    lines = ["smiles,value"]
    for _ in range(count):
        atoms = draw.choices("CON", weights=(4, 1, 1), k=draw.randint(4, 12))
        value = 3 + sum(worth[atom] for atom in atoms) + draw.gauss(0, 0.3)
        lines.append(f"{''.join(f'C({atom})' if draw.random() < 0.2 else atom for atom in atoms)},{value * unit:.6g}")
    path.write_text("\n".join(lines) + "\n")
    return path


def waves(path: Path, count: int = 1500) -> Path:
    """Four series: waves of other lengths and heights around other levels, with some noise."""
    draw, lines = random.Random(12), ["time,a,b,c,d"]
    for time in range(count):
        values = [
            level + height * (math.sin(2 * math.pi * time / length) + draw.gauss(0, 0.1))
            for level, height, length in ((0, 1, 12), (10, 3, 17), (-5, 2, 31), (100, 20, 48))
        ]
        lines.append(",".join([f"t{time}", *(f"{value:.4f}" for value in values)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def walk(path: Path, count: int = 1500) -> Path:
    """Two random walks: the best forecast is the last value."""
    draw, lines, at = random.Random(13), ["time,a,b"], [0.0, 50.0]
    for time in range(count):
        at = [value + draw.gauss(0, 1) for value in at]
        lines.append(",".join([f"t{time}", *(f"{value:.4f}" for value in at)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def coins(path: Path, count: int = 100_000) -> Path:
    """Two characters with equal chances."""
    path.write_text("".join(random.Random(14).choices("01", k=count)))
    return path


def one_sentence(path: Path, count: int = 3000) -> Path:
    """The same sentence again and again."""
    path.write_text("the quick brown fox jumps over the lazy dog.\n" * count)
    return path


def same_pairs(path: Path, count: int = 3000) -> Path:
    """Sentences whose translation is the sentence."""
    draw, known = random.Random(15), words(120, 2)
    texts = [" ".join(draw.choices(known, k=draw.randint(3, 10))) for _ in range(count)]
    path.write_text("".join(f"{text}\t{text}\n" for text in texts))
    return path
