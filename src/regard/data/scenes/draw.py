"""From a caption to an image: each digit is written by hand, in the color of its group and in one of four quarters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX
from regard.data.images.arrays import LabeledImages, Pixels
from regard.data.scenes.grammar import COLORS, DIGITS, Caption

MOST = 4  # digits in a scene
CAPTION_DRAWS, DRAWS = 7, 7 + 2 + 3 * MOST  # random numbers: of a caption and its form; of a scene
# The quarters are 0 1 / 2 3. Where two groups are, for each number of their digits; the third number is drawn.
_ALONE = {1: ((0,), (1,), (2,), (3,)), 2: ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))}


class Scene(NamedTuple):
    """An image with what it shows."""

    image: Pixels  # [3, Y, X]
    boxes: NDArray[np.float32]  # [4, 4]: center column and row, width, height of the ink, as shares of the sides
    classes: NDArray[np.int64]  # [4]: the digits; IGNORE_INDEX where there are fewer


class Writing:
    """Handwritten gray digits [N, 1, S, S], by digit."""

    def __init__(self, digits: LabeledImages, grid: int = 1):
        """``grid``: digits are at multiples of so many pixels from their quarter's corner."""
        self.grid = grid
        self.side = digits.images.shape[-1]
        self.by_digit = [digits.images[digits.labels == digit, 0] for digit in range(DIGITS)]

    @property
    def canvas(self) -> int:
        """Rows and columns of a scene: two quarters that leave half of a digit's side free."""
        return 3 * self.side

    def draw(self, caption: Caption, random: NDArray[np.float64]) -> Scene:
        """A scene of a canonical caption; ``random`` has 2 + 3 · 4 numbers in [0, 1)."""
        image = np.zeros((3, self.canvas, self.canvas), np.uint8)
        boxes, classes, count = np.zeros((MOST, 4), np.float32), np.full(MOST, IGNORE_INDEX), 0
        for group, quarters in zip(caption.groups, places(caption, random[0], random[1]), strict=True):
            color = np.array(tuple(COLORS.values())[group.color])[:, None, None]
            for quarter in quarters:
                which, *shift = random[2 + 3 * count : 5 + 3 * count]
                ink = self.by_digit[group.digit][int(which * len(self.by_digit[group.digit]))]
                free = self.side // 2 // self.grid + 1
                sides = zip(divmod(quarter, 2), shift, strict=True)
                top, left = (part * (self.canvas // 2) + int(share * free) * self.grid for part, share in sides)
                image[:, top : top + self.side, left : left + self.side] = ink * color // 255
                boxes[count] = box(ink, top, left) / self.canvas
                classes[count] = group.digit
                count += 1
        return Scene(image, boxes, classes)


def places(caption: Caption, one: float, two: float) -> list[tuple[int, ...]]:
    """The quarters of each group: a group of two fills the row or column of its relation, a single one is in either."""
    if caption.second is None:
        choices = _ALONE[caption.first.number]
        return [choices[int(one * len(choices))]]
    across, down = (1, 2) if caption.relation == "above" else (2, 1)  # the next quarter along a group's line
    line = int(one * 2)  # single digits of both groups are on one line
    lines = [tuple(range(2)) if group.number == 2 else (line,) for group in caption.groups]
    return [tuple(number * down + place * across for place in line) for number, line in enumerate(lines)]


def box(ink: NDArray[np.uint8], top: int, left: int) -> NDArray[np.float32]:
    """The box around the ink of a digit at (top, left), in pixels: center column and row, width, height."""
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    return np.array([left + columns[0] + width / 2, top + rows[0] + height / 2, width, height], np.float32)
