"""Random words, sentences and paragraphs, and data of them."""

import random
from pathlib import Path
from tempfile import mkdtemp

from regard.data import TextConfig, TextData


def words(rng: random.Random, count: int) -> list[str]:
    parts = [
        a + b
        for a in ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v"]
        for b in ("a", "e", "i", "o", "u", "an", "er", "is")
    ]
    return list(dict.fromkeys("".join(rng.choices(parts, k=rng.choice((1, 2, 2, 3)))) for _ in range(count)))


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    known = words(rng, 2500)
    weights = [1 / (3 + i) for i in range(len(known))]
    return [" ".join(rng.choices(known, weights, k=rng.randint(6, 16))).capitalize() + "." for _ in range(count)]


def paragraphs(seed: int, count: int, each: int = 4) -> list[str]:
    lines = sentences(seed, count * each)
    return [" ".join(lines[i * each : (i + 1) * each]) for i in range(count)]


def text_data(train: str, validation: str | None = None, *, context: int) -> TextData:
    """Data of texts that are written into a new temporary folder."""
    folder, options = Path(mkdtemp()), {}
    (folder / "first.txt").write_text(train, encoding="utf-8")
    if validation is not None:
        (folder / "second.txt").write_text(validation, encoding="utf-8")
        options["validation_path"] = str(folder / "second.txt")
    return TextConfig(path=str(folder / "first.txt"), **options).build(context, cache=folder / "cache")
