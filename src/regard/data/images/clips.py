"""Clips and their classes: digits that move, or clips of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.config import option
from regard.data.base import DataConfig, Example
from regard.data.examples import draw
from regard.data.images.arrays import LabeledImages, Pixels
from regard.data.images.config import ImagesConfig, divided
from regard.data.images.data import ImageData, to_floats, unlabeled
from regard.data.images.folder import SUFFIXES, image_files, pillow, read_folder, read_image
from regard.data.split import check_fractions
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.untrusted import open_plain

if TYPE_CHECKING:
    from regard.models import ModelConfig

WAYS = ("left", "right", "up", "down")
HELD_OUT = 1000  # clips of moving digits in the validation and in the test part


@dataclass(frozen=True)
class ClipsConfig(DataConfig, kind="clips"):
    """Clips and their classes; without a path, handwritten digits that move: which digit, and which way."""

    path: str | None = option(
        None, "a folder of your own with a folder for each class, of animated images or of folders of frames"
    )
    source: str = option("digits", "without a path: the images of digits that move; `regard data` lists images")
    clips: int = option(8000, "without a path: the clips of the training part")
    frames: int = option(8, "frames of a clip, at equal distances")
    size: int | None = option(None, "with a path: rows and columns of the frames; default: those of the first")
    channels: int = option(3, "with a path: 3 for color, 1 for gray")
    validation: float = option(0.1, "the fraction of the clips, or of the images of digits, held out for evaluation")
    test: float = option(0.1, "the fraction held out for a final test")
    batch: int = option(32, "clips per micro-batch")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("size", "frames", "clips", "batch"):
            if (value := vars(self)[name]) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (gray) or 3 (color), not {self.channels}")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> ImageData:
        """Read or make the clips; ``context`` and ``tokenizer`` are for texts."""
        self.check()  # a config made in Python was not loaded
        if self.path is None:
            return self._moving(cache)
        folder = Path(self.path).expanduser()
        given = read_folder(
            folder, self.size, lambda path, size: read_clip(path, self.channels, size, self.frames), clips
        )
        parts = divided(given, self.validation, self.test)
        if not len(parts[0].labels):
            raise UserError(f"no clip of {folder} is left for training; lower --data.validation and --data.test")
        return ImageData(parts, given.labels, name=self.path)

    def _moving(self, cache: Path | None) -> ImageData:
        """Moving digits. The parts have different handwritten images."""
        images = ImagesConfig(source=self.source, validation=self.validation, test=self.test).build(0, cache)
        counts = (self.clips, HELD_OUT * (self.validation > 0), HELD_OUT * (images.test_count != 0))
        given = zip((images.train, images.validation, images.test), counts, strict=True)
        parts = [moving(part, count, self.frames, seed) for seed, (part, count) in enumerate(given)]
        labels = tuple(f"{digit} {way}" for digit in images.labels for way in WAYS)
        return ImageData((parts[0], parts[1], parts[2]), labels, name=f"moving {self.source}")

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        from regard.models.video import VideoConfig

        if not isinstance(model, VideoConfig):
            raise UserError(f"a {model.kind} reads no clips")
        own = not path.is_dir() or any(file.suffix.lower() in SUFFIXES for file in path.iterdir() if file.is_file())
        found, sides = [path] if own else clips(path), (model.image, model.image)
        import torch

        read = [torch.from_numpy(read_clip(one, model.channels, sides, model.frames)) for one in found]
        return [unlabeled(str(one), to_floats(clip)) for one, clip in zip(found, read, strict=True)]


def moving(digits: LabeledImages, count: int, frames: int, seed: int) -> LabeledImages:
    """Clips [count, M, frames, 2Y, 2X] of digits that move by an image's side; number i is a function of (seed, i)."""
    side = digits.images.shape[2]
    made = np.zeros((count, digits.images.shape[1], frames, 2 * side, 2 * side), np.uint8)
    random = draw(seed, 0, count, 3)
    chosen = (random[:, 0] * len(digits.labels)).astype(np.int64)
    ways = (random[:, 1] * len(WAYS)).astype(np.int64)
    steps = np.rint(np.linspace(0, side, frames)).astype(np.int64)
    for number, (one, way, across) in enumerate(
        zip(chosen, ways, (random[:, 2] * (side + 1)).astype(int), strict=True)
    ):
        along = steps if WAYS[way] in ("right", "down") else side - steps
        for frame, place in enumerate(along):
            top, left = (across, place) if WAYS[way] in ("left", "right") else (place, across)
            made[number, :, frame, top : top + side, left : left + side] = digits.images[one]
    return LabeledImages(made, digits.labels[chosen] * len(WAYS) + ways)


def clips(folder: Path) -> list[Path]:
    """The clips of a folder: animated images, and folders of frames."""
    found = [path for path in folder.iterdir() if path.is_dir() or path.suffix.lower() in SUFFIXES]
    if not found:
        raise UserError(f"{folder} has no clip; a clip is an animated image, or a folder of frames")
    return sorted(found)


def read_clip(path: Path, channels: int, size: tuple[int, int] | None, frames: int) -> Pixels:
    """A clip as [M, T, Y, X]: ``frames`` frames at equal distances of an animated image or of a folder of images."""
    if path.is_dir():
        places = [(file, 0) for file in image_files(path)]
    else:
        read_image(path, 1)  # reports what is no image
        with open(open_plain(path, follow=True), "rb") as file, pillow().open(file) as image:
            places = [(path, number) for number in range(getattr(image, "n_frames", 1))]
    if len(places) < frames:
        raise UserError(f"the clip {path} has {len(places)} frames, too few for {frames}; lower --data.frames")
    found: list[Pixels] = []
    for number in range(frames):
        file, frame = places[number * len(places) // frames]
        found.append(read_image(file, channels, size, frame))
        size = size or found[0].shape[1:]
    return np.stack(found, axis=1)
