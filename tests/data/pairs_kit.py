"""Made-up sentence pairs: numbers spelled in English and German."""

import numpy as np
import torch

from regard.data import BpeConfig, PairsConfig

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def spelled(number: int, words: list[str]) -> str:
    return " ".join(words[int(digit)] for digit in str(number))


def lines(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Numbers spelled in English and German, some long and some short, each once; a group holds a few of them."""
    draw = np.random.default_rng(seed)
    numbers = dict.fromkeys(int(10 ** draw.uniform(0, 12)) for _ in range(4 * count))
    chosen = list(numbers)[:count]
    return [(spelled(n, NUMBERS), spelled(n, ZAHLEN), f"group {i // 5}") for i, n in enumerate(chosen)]


def write(path, rows) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def both(pairs) -> list[tuple[str, str]]:
    return list(zip(pairs.sources, pairs.targets, strict=True))


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def numbers_config(folder) -> PairsConfig:
    """Four hundred pairs in one file, without a search for near-duplicates."""
    path = write(folder / "numbers.tsv", lines(400))
    return PairsConfig(
        path=path, languages="en-de", tokenizer=BpeConfig(vocabulary=300), near=100, validation=0.1, test=0.1, batch=256
    )
