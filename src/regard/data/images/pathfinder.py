"""Pathfinder (Linsley et al. 2018; Tay et al. 2021): does a dashed path connect the two bright dots?

Example i of a part is a function of (seed, part, i). Consecutive pixels of a path touch, every third one is left out,
and different paths are at least `APART` pixels from one another in one direction, so that the answer is never in doubt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.config import option
from regard.data.base import IGNORE_INDEX, DataConfig, ImageBatch
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.images.data import attended_image, to_floats
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

APART, PATH, DOT = 3, 128, 255  # the distance of paths; the brightness of their pixels and of the two dots
SHORTEST = 3  # pixels of a path in training
TRIES = 200  # pictures that are begun until one has room for all of its paths
#: The order in which a walk tries to keep its direction, or to turn by 45 degrees.
TURNS = ((0, 1, -1), (0, -1, 1), (1, 0, -1), (-1, 0, 1))
Path2D = list[tuple[int, int]]  # rows and columns of the pixels of a path


@dataclass(frozen=True)
class PathfinderConfig(DataConfig, kind="pathfinder"):
    """Pictures of dashed paths with two dots, which one of them connects or not. There are infinitely many."""

    size: int = option(16, "rows and columns of a picture", least=8)
    length: int | None = option(
        None, "pixels of a path, gaps included (default: 2/3 of the size); in training, also fewer", least=4
    )
    paths: int | None = option(None, "paths in a picture (default: 2, and 1 more for every 8 pixels above 16)", least=2)
    longer: float = option(1.5, "the test part has paths of so many times that length", least=1)
    validation: int = option(512, "pictures in the validation part, and in the test part", least=1)
    batch: int = option(64, "pictures per batch", least=1)

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> PathfinderData:
        return PathfinderData(self)

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return attended_image(batch.inputs, weights)


class PathfinderData(ExampleData[ImageBatch]):
    """Pictures that are drawn when they are needed."""

    labels = ("apart", "connected")

    def __init__(self, config: PathfinderConfig) -> None:
        super().__init__((2**62, config.validation, config.validation), f"pathfinder ({config.size} pixels)")
        self.shape = (1, config.size, config.size)
        self.sha256 = hashlib.sha256(repr(config).encode()).hexdigest()
        self.side = config.size
        self.paths = config.paths or 2 + max(0, config.size - 16) // 8
        length = config.length or 2 * config.size // 3
        self.lengths: dict[Part, int] = {
            "train": length,
            "validation": length,
            "test": round(length * config.longer),
        }
        for part in self.lengths:  # refuses what has no room before the training begins
            self.example(0, part, 0)

    @property
    def frequencies(self) -> Numbers:
        """Both classes are as likely."""
        return np.array([1, 1])

    def example(self, seed: int, part: Part, number: int) -> tuple[NDArray[np.uint8], bool]:
        """A picture [Y, X], and whether its dots are connected."""
        draw = Random(f"pathfinder {seed} {part} {number}")
        length = self.lengths[part]
        if part == "train":  # short paths, which need less to be followed, come as often as long ones
            length = draw.randint(SHORTEST, length)
        for _ in range(TRIES):
            paths = draw_paths(draw, self.side, self.paths, length)
            if paths is not None:
                connected = draw.random() < 0.5
                return painted(paths, self.side, dots(draw, paths, connected=connected)), connected
        raise UserError(
            f"a picture of {self.side} pixels has no room for {self.paths} paths of {self.lengths[part]} ({part} part);"
            " lower --data.length, --data.paths or --data.longer, or raise --data.size"
        )

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> ImageBatch:
        """Every example occurs once; there are no epochs."""
        first = step * size * world
        return self._batch(seed, "train", range(first + rank, first + size * world, world))

    def train_batch(self, numbers: Numbers, random: Uniform) -> ImageBatch:
        return self._batch(0, "train", numbers)

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> ImageBatch:
        found = self._batch(0, part, numbers)
        return found if counts else found._replace(targets=found.targets.fill_(IGNORE_INDEX))

    def epoch(self, size: int, world: int = 1) -> float:
        return float("inf")

    def _batch(self, seed: int, part: Part, numbers: range | Numbers) -> ImageBatch:
        import torch  # not at the top: configs are read without torch

        pictures, labels = zip(*(self.example(seed, part, int(number)) for number in numbers), strict=True)
        images = torch.from_numpy(np.stack(pictures)[:, None])
        return ImageBatch(to_floats(images), torch.tensor(labels, dtype=torch.long)[:, None])


def draw_paths(draw: Random, side: int, count: int, length: int) -> list[Path2D] | None:
    """Paths that keep their distance; None if there was no room for one of them."""
    edge = APART - 1
    width = side + 2 * edge
    free = bytearray(width * width)
    for row in range(edge, edge + side):
        free[row * width + edge : row * width + edge + side] = b"\1" * side
    around = [y * width + x for y in range(1 - APART, APART) for x in range(1 - APART, APART)]
    paths = []
    for _ in range(count):
        walk = next((walk for walk in _walks(draw, free, width, length) if len(walk) == length), None)
        if walk is None:
            return None
        for place in walk:
            for offset in around:
                free[place + offset] = 0
        paths.append([(place // width - edge, place % width - edge) for place in walk])
    return paths


def _walks(draw: Random, free: bytearray, width: int, length: int, tries: int = 20) -> Iterator[list[int]]:
    """Walks over free places that do not touch themselves and turn by at most 45 degrees; stuck ones are shorter."""
    ways = (-width, 1 - width, 1, 1 + width, width, width - 1, -1, -1 - width)
    starts = [place for place, is_free in enumerate(free) if is_free]
    for _ in range(tries if starts else 0):
        walk, way, near = [draw.choice(starts)], draw.randrange(8), set[int]()
        while len(walk) < length:
            turned = [(way + turn) % 8 for turn in draw.choice(TURNS)]
            able = [one for one in turned if free[walk[-1] + ways[one]] and walk[-1] + ways[one] not in near]
            if not able:
                break
            way = able[0]
            walk.append(walk[-1] + ways[way])
            if len(walk) > 3:
                near.update(walk[-4] + offset for offset in (0, *ways))
        yield walk


def dots(draw: Random, paths: list[Path2D], *, connected: bool) -> Path2D:
    """The two ends of the first path; or one of them and the end of another path that is about as far away.

    With any end of another path, the distance of the dots alone would often tell the answer.
    """
    first, second = draw.sample((paths[0][0], paths[0][-1]), 2)
    if connected:
        return [first, second]

    def far(place: tuple[int, int]) -> float:
        return ((place[0] - first[0]) ** 2 + (place[1] - first[1]) ** 2) ** 0.5

    others = [path[end] for path in paths[1:] for end in (0, -1)]
    return [first, min(others, key=lambda place: abs(far(place) - far(second)))]


def painted(paths: list[Path2D], side: int, ends: Path2D) -> NDArray[np.uint8]:
    """The dashed paths, two pixels and a gap, and the dots."""
    picture = np.zeros((side, side), np.uint8)
    for path in paths:
        for number, place in enumerate(path):
            if number % 3 < 2 or number == len(path) - 1:
                picture[place] = PATH
    for place in ends:
        picture[place] = DOT
    return picture
