"""Images with texts as plain values, and the reader of a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.images.arrays import Pixels
from regard.data.images.folder import read_image
from regard.data.labeled.examples import table
from regard.data.origins.progress import ProgressLine
from regard.errors import UserError

CAPTIONS = "captions.tsv"
NO_CLASS = -2  # the category of what has none; it is no IGNORE_INDEX, because its text counts


class Captioned(NamedTuple):
    """One thing that is shown and described."""

    name: str
    pictures: tuple[int, ...]  # the numbers of its pictures; the first one is that of evaluation
    texts: dict[str, list[str]]  # by language: a label, then tags
    group: str  # examples of a group are in one part of the data
    category: int  # NO_CLASS: it has none


class Prompts(NamedTuple):
    """Texts that stand for the categories, in one language."""

    texts: tuple[str, ...]
    categories: tuple[int, ...]  # of each text; a category may have several


class ImageTexts(NamedTuple):
    """All that a source or a folder has."""

    images: Pixels  # [N, M, Y, X]
    examples: tuple[Captioned, ...]
    categories: tuple[str, ...]  # their names; (): there are none
    prompts: dict[str, Prompts]  # by language

    def with_pictures(self, other: ImageTexts) -> ImageTexts:
        """With the pictures of the same examples from another source, after those that they have.

        An example without pictures stays without: all are evaluated in the first style.
        """
        more = {one.name: tuple(len(self.images) + number for number in one.pictures) for one in other.examples}
        examples = (
            one._replace(pictures=one.pictures and one.pictures + more.get(one.name, ())) for one in self.examples
        )
        return self._replace(images=np.concatenate((self.images, other.images)), examples=tuple(examples))


def read_captions(folder: Path, size: int, language: str) -> ImageTexts:
    """A folder of images with a file `captions.tsv`: columns `file` and `text`, and `class` if there are classes.

    A text is a label, then tags after commas. Several lines for a file are several examples in one group.
    """
    path = folder / CAPTIONS
    if not path.is_file():
        raise UserError(
            f"there is no {path}; put one there with the columns file and text (and class), one image a line"
        )
    rows, numbers, images, examples = list(table(path)), {}, [], []
    classes = sorted({str(row["class"]).strip() for _, row in rows if row.get("class")})
    with ProgressLine(f"reading the images of {folder.name}", len(rows)) as progress:
        for number, row in rows:
            name, text = (str(row.get(key) or "").strip() for key in ("file", "text"))
            if not name or not text:
                raise UserError(f"record {number} of {path} has no file or no text; give both columns a value")
            if (folder / name).resolve().parent != folder.resolve():
                raise UserError(
                    f"record {number} of {path}: {name} is not in the folder; put the image beside the file"
                )
            if name not in numbers:
                numbers[name] = len(images)
                images.append(read_image(folder / name, 3, (size, size)))
            label, *tags = (part.strip() for part in text.split(",") if part.strip())
            category = classes.index(str(row["class"]).strip()) if row.get("class") else NO_CLASS
            examples.append(Captioned(name, (numbers[name],), {language: [label, *tags]}, name, category))
            progress.advance(1)
    if not examples:
        raise UserError(f"{path} names no image; give each a line: the file, a tab, and a text")
    prompts = {language: Prompts(tuple(classes), tuple(range(len(classes))))}
    return ImageTexts(np.stack(images), tuple(examples), tuple(classes), prompts)
