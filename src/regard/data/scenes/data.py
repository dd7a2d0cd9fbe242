"""Batches of scenes with captions and boxes. A scene is a pure function of (seed, part, number)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.config import option
from regard.data.base import IGNORE_INDEX, DataConfig, Example
from regard.data.examples import ExampleData, Numbers, Part, Uniform, draw
from regard.data.images.config import ImagesConfig
from regard.data.images.data import ImageData, attended_image, read_images, to_floats
from regard.data.scenes.draw import CAPTION_DRAWS, DRAWS, MOST, Scene, Writing
from regard.data.scenes.grammar import COLORS, LONGEST, WORDS, Caption, random_caption
from regard.data.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

HELD_OUT = 1000  # scenes of the validation and of the test part
RECOLOR_DRAWS = 1 + 3 * 3  # random numbers for a scene that is recolored
PARTS: tuple[Part, ...] = ("train", "validation", "test")


class SceneBatch(NamedTuple):
    """Scenes of digits."""

    inputs: Tensor  # [B, 3, Y, X] float32, from -1 to 1
    targets: Tensor  # [B, 4] int64: the digits; IGNORE_INDEX where there are fewer
    boxes: Tensor  # [B, 4, 4] float32: center column and row, width, height, as shares of the sides
    prompts: Tensor  # [B, T] int64: tokens of a caption, which may begin with either group
    captions: Tensor  # [B, T] int64: tokens of the canonical caption; IGNORE_INDEX: what a scene does not tell

    @property
    def arguments(self) -> tuple[Tensor]:
        """What an encoder of images is called with."""
        return (self.inputs,)


class SceneData(ExampleData[SceneBatch]):
    """Scenes; those of the test part have a pair of color and digit that the others never have."""

    vocabulary = len(WORDS)

    def __init__(
        self,
        images: ImageData,
        count: int,
        seed: int,
        grid: int = 1,
        recolor: float = 0.0,
    ) -> None:
        held_out = [HELD_OUT * bool(part) for part in (images.validation_count, images.test_count)]
        super().__init__((count, held_out[0], held_out[1]), f"scenes of {images.name}")
        self.classes, self.recolor = images.labels, recolor
        self.draws = RECOLOR_DRAWS
        self.writing = [Writing(part, grid) for part in (images.train, images.validation, images.test)]
        side = self.writing[0].canvas
        self.shape = (3, side, side)
        self.sha256 = hashlib.sha256(repr((images.sha256, self.count, seed, grid)).encode()).hexdigest()
        parts = enumerate((self.count, *held_out))
        self._random = [draw(seed, number, size, DRAWS) for number, size in parts]

    def caption(self, part: Part, number: int) -> Caption:
        """The canonical caption of a scene."""
        return random_caption(self._random[PARTS.index(part)][number], held_out=part == "test")

    def scene(self, part: Part, number: int) -> Scene:
        """A scene."""
        return self.writing[PARTS.index(part)].draw(self.caption(part, number), self.random(part, number))

    def random(self, part: Part, number: int) -> Uniform:
        """The random numbers that a scene is drawn with."""
        return self._random[PARTS.index(part)][number, CAPTION_DRAWS:]

    def train_batch(self, numbers: Numbers, random: Uniform) -> SceneBatch:
        import torch

        from regard.data.images import augment  # not at the top: configs are read without torch

        batch = self.part_batch("train", numbers)
        inputs = augment.recolor(batch.inputs, random, self.recolor)
        recolored = torch.from_numpy(random[:, :1] < self.recolor)  # [B, 1]; a caption does not tell these colors
        unknown = recolored & torch.isin(batch.captions, torch.tensor([WORDS.index(word) for word in COLORS]))
        return batch._replace(inputs=inputs, captions=batch.captions.masked_fill(unknown, IGNORE_INDEX))

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> SceneBatch:
        import torch  # not at the top: configs are read without torch

        scenes = [self.scene(part, number) for number in numbers]
        captions = [self.caption(part, number) for number in numbers]
        turned = self._random[PARTS.index(part)][numbers, CAPTION_DRAWS - 1] < 0.5
        prompts = [one.inverse if turn else one for one, turn in zip(captions, turned, strict=True)]
        arrays = (
            np.stack([one.image for one in scenes]),
            np.stack([one.classes for one in scenes]),
            np.stack([one.boxes for one in scenes]),
            np.array([one.tokens for one in prompts], np.int64),
            np.array([one.tokens for one in captions], np.int64),
        )
        images, *rest = map(torch.from_numpy, arrays)
        batch = SceneBatch(to_floats(images), *rest)
        return batch if counts else unlabeled_scenes(batch.inputs)

    def held_out(self, count: int) -> list[Example]:
        part: Part = "test" if self.test_count else "validation"
        texts = [str(self.caption(part, n)) for n in range(min(count, self.test_count or self.validation_count or 0))]
        return [
            Example(f"{part} example {n}, {text}", self.part_batch(part, np.array([n])), text)
            for n, text in enumerate(texts)
        ]


def unlabeled_scenes(images: Tensor) -> SceneBatch:
    """Images [B, 3, Y, X] whose captions and digits are not known: no target counts."""
    none = images.new_full((len(images), LONGEST), IGNORE_INDEX).long()
    boxes = images.new_zeros(len(images), MOST, 4)
    return SceneBatch(images, none[:, :MOST], boxes, none, none)


@dataclass(frozen=True)
class ScenesConfig(DataConfig, kind="scenes"):
    """Scenes of colored digits with captions such as "two red 3s above a blue 7"."""

    source: str = option("digits", "the images of gray digits; `regard data` lists images")
    scenes: int = option(20_000, "scenes of the training part")
    made: int = option(1, "the seed of the scenes")
    grid: int = option(1, "digits are at multiples of so many pixels; 4, the side of a patch, makes codes simple")
    recolor: float = option(
        0.0, "augmentation: mix the channels of this share of the images; their captions tell no colors"
    )
    batch: int = option(64, "scenes per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        for name in ("scenes", "grid", "batch"):
            if (value := vars(self)[name]) < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.recolor <= 1:
            raise ValueError(f"recolor is a share from 0 to 1, not {self.recolor}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SceneData:
        """Make the scenes; ``context`` and ``tokenizer`` are for texts. The parts have different handwritten images."""
        self.check()
        images = ImagesConfig(source=self.source).build(0, cache)
        return SceneData(images, self.scenes, self.made, self.grid, self.recolor)

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return attended_image(batch.inputs, weights)

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        return [Example(str(file), unlabeled_scenes(image[None])) for file, image in read_images(path, model)]
