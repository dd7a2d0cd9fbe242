"""The user's own images: a folder for each class, read by Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.images.arrays import ImageSet, LabeledImages, Pixels
from regard.data.origins.progress import ProgressLine
from regard.errors import UserError
from regard.untrusted import open_plain

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
MOST_PIXELS = 2**26  # of one image: a small file can unpack to a huge one
MODES = {1: "L", 3: "RGB"}


def pillow() -> Any:
    """The module ``PIL.Image``, which is not needed for anything else."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("images are read by Pillow; install it: pip install 'regard[images]'") from error
    return Image


def read_image(path: Path, channels: int, size: tuple[int, int] | None = None, frame: int = 0) -> Pixels:
    """An image as [M, Y, X], resized to ``size`` (rows, columns): its middle part, if it has another shape.

    ``frame``: of an animated image.
    """
    image_module = pillow()
    try:
        with open(open_plain(path, follow=True), "rb") as file, image_module.open(file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise UserError(f"{path} has {image.width} x {image.height} pixels; the most are {MOST_PIXELS:,}")
            if frame:
                image.seek(frame)
            if image.has_transparency_data:
                image = image_module.alpha_composite(
                    image_module.new("RGBA", image.size, "white"), image.convert("RGBA")
                )
            image = image.convert(MODES[channels])
            if size is not None and image.size != size[::-1]:
                image = _fitted(image, size, image_module)
            pixels = np.array(image, np.uint8)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise UserError(f"{path} is no image that Pillow reads ({type(error).__name__}: {error})") from error
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1))


def _fitted(image: Any, size: tuple[int, int], image_module: Any) -> Any:
    """The largest middle part with the ratio of ``size``, resized to it."""
    rows, columns = size
    scale = min(image.width / columns, image.height / rows)
    left, top = (image.width - columns * scale) / 2, (image.height - rows * scale) / 2
    box = (left, top, left + columns * scale, top + rows * scale)
    return image.resize((columns, rows), image_module.Resampling.BICUBIC, box=box)


def image_files(folder: Path) -> list[Path]:
    """The image files below a folder in the order of their names."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise UserError(f"{folder} has no image; images end with {', '.join(SUFFIXES)}")
    return files


Reader = Callable[[Path, tuple[int, int] | None], Pixels]  # (file, rows and columns) to [M, ..., Y, X]
Finder = Callable[[Path], list[Path]]


def read_folder(folder: Path, size: int | None, read: Reader, find: Finder = image_files) -> ImageSet:
    """The examples of a folder with a folder for each class, or with such folders in `train` and `test`.

    ``find`` lists the examples below a folder, ``read`` reads one.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one that has a folder of images for each class")
    divided = (folder / "train").is_dir()
    roots = {"train": folder / "train" if divided else folder}
    if divided and (folder / "test").is_dir():
        roots["test"] = folder / "test"
    labels = tuple(sorted(path.name for path in roots["train"].iterdir() if path.is_dir() and path.name[0] != "."))
    if len(labels) < 2:
        raise UserError(f"{roots['train']} has {len(labels)} folders; it needs one for each of at least two classes")
    found = {part: _files(root, labels, find) for part, root in roots.items()}
    shape = (size, size) if size else None
    parts = {}
    for part, files in found.items():
        pixels = []
        with ProgressLine(f"reading the images of {roots[part].name}", len(files)) as progress:
            for path, _ in files:
                pixels.append(read(path, shape))
                shape = shape or pixels[0].shape[-2:]  # the first image gives the size of all
                progress.advance(1)
        parts[part] = LabeledImages(np.stack(pixels), np.array([label for _, label in files], np.int64))
    train = parts["train"]
    return ImageSet(train, parts.get("test", LabeledImages.none(train.images.shape[1:])), labels)


def _files(root: Path, labels: tuple[str, ...], find: Finder) -> list[tuple[Path, int]]:
    """The examples below the folder of each class, in the order of their paths."""
    return [(path, number) for number, label in enumerate(labels) for path in find(root / label)]


def png(images: Pixels, columns: int, scale: int) -> bytes:
    """A PNG of images [N, M, Y, X], ``columns`` of them in a row; ``scale``: pixels of the file for each of theirs."""
    large = images.repeat(scale, axis=2).repeat(scale, axis=3)
    large = np.pad(large, ((0, 0), (0, 0), (0, scale), (0, scale)), constant_values=128)  # gray lines between images
    tiles = large.reshape(-1, columns, *large.shape[1:]).transpose(0, 3, 1, 4, 2)  # [rows, Y, columns, X, M]
    rows, height, columns, width, channels = tiles.shape
    whole = tiles.reshape(rows * height, columns * width, channels)[:-scale, :-scale]
    file = io.BytesIO()
    pillow().fromarray(whole if channels == 3 else whole[:, :, 0]).save(file, "PNG")
    return file.getvalue()
