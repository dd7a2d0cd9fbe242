"""Batches of images with texts. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.base import IGNORE_INDEX, Example, ImageTextBatch
from regard.data.examples import ExampleData, Numbers, Part, Uniform
from regard.data.images.arrays import Pixels
from regard.data.images.data import Augmentation, changed, image_examples, to_floats
from regard.data.imagetext.captioned import Captioned, Prompts
from regard.data.tokenizers import PublishedTokenizer, Tokenizer
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

CANDIDATES = 100  # texts, and images, among which the right one is searched in evaluation
TAGS = 16  # of a text in training, at most
Tokens = NDArray[np.int64]


class Shown(NamedTuple):
    """One thing: its pictures, and its label and tags by language, in lower case."""

    pictures: tuple[int, ...]
    texts: tuple[tuple[str, ...], ...]  # by language; () where it has none
    category: int
    title: str  # for people


class TextRows:
    """Texts as rows of at most ``longest`` tokens, in lower case."""

    def __init__(self, tokenizer: Tokenizer, longest: int):
        self.tokenizer, self.longest = tokenizer, longest

    def rows(self, texts: Sequence[str]) -> tuple[Tokens, Tokens]:
        """Rows [R, T] that are cut or padded with zeros, and their lengths [R]."""
        if empty := [number for number, text in enumerate(texts, 1) if not text.strip()]:
            raise UserError(f"text {empty[0]} is empty; leave it out")
        texts = [text.strip().lower() for text in texts]
        if isinstance(self.tokenizer, PublishedTokenizer):  # which cuts before its last special token
            rows = [one.ids for one in self.tokenizer.encode_texts(texts, self.longest)]
        else:
            rows = [self.tokenizer.encode(text)[: self.longest] for text in texts]
        tokens = np.zeros((len(rows), self.longest), np.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
        return tokens, np.array([len(row) for row in rows], np.int64)


class ImageTextData(ExampleData[ImageTextBatch]):
    """Images with texts in three parts.

    In training a picture, a language and the tags of a text are drawn anew each time; half of the texts are in the
    first language. In evaluation there are sets of 100 images with the whole texts, the test part in every language.
    """

    shape: tuple[int, int, int]
    draws = 18 + TAGS

    def __init__(
        self,
        parts: tuple[list[Captioned], list[Captioned], list[Captioned]],
        images: Pixels,
        rows: TextRows,
        *,
        size: int,
        name: str,
        sha256: str,
        languages: tuple[str, ...],
        categories: tuple[str, ...] = (),
        prompts: Sequence[Prompts] = (),
        augmentation: Augmentation | None = None,
        tags: bool = True,
        alike: int = 1,
    ) -> None:
        """``parts``: train, validation, test; smaller ``images`` are enlarged to ``size``; ``prompts``: by language.

        ``alike``: texts in one language; without ``tags``, a text is its label.
        """
        super().__init__((len(parts[0]), len(parts[1]), len(parts[2]) * len(languages)), name)
        self.images, self.rows, self.languages = images, rows, languages
        self.labels = self.names = categories
        self.tokenizer, self.vocabulary = rows.tokenizer, rows.tokenizer.size
        self.tags, self.alike = tags, alike
        self.shape, self.sha256 = (images.shape[1], size, size), sha256
        self.examples = {
            part: [self._shown(one) for one in some]
            for part, some in zip(("train", "validation", "test"), parts, strict=True)
        }
        self.prompts = [(*rows.rows(one.texts), np.array(one.categories)) for one in prompts if one.texts]
        self.augmentation = augmentation or Augmentation()

    def _shown(self, one: Captioned) -> Shown:
        most = None if self.tags else 1
        texts = tuple(tuple(map(str.lower, one.texts.get(language, ())[:most])) for language in self.languages)
        title = next(one.texts[language][0] for language in self.languages if one.texts.get(language))
        return Shown(one.pictures, texts, one.category, title)

    @property
    def frequencies(self) -> Numbers:
        categories = np.array([one.category for one in self.examples["train"]])
        return np.bincount(categories[categories >= 0], minlength=len(self.labels))

    def train_batch(self, numbers: Numbers, random: Uniform) -> ImageTextBatch:
        """Each text is the label and every tag with a chance of one half, in any order; or some tags alone."""
        examples = [self.examples["train"][number] for number in numbers]
        pictures = [
            one.pictures[int(draw * len(one.pictures))] for one, draw in zip(examples, random[:, 0], strict=True)
        ]
        random[:, 16] = random[:: self.alike, 16].repeat(self.alike)[: len(random)]  # of the language
        texts = [self._drawn(one, draws) for one, draws in zip(examples, random[:, 16:], strict=True)]
        images = changed(
            self._picked(pictures), random[:, 1:16], self.augmentation, fill=1.0
        )  # white, as the background
        return self._batch(images, *self.rows.rows(texts), np.array([one.category for one in examples]))

    def _drawn(self, one: Shown, random: NDArray[np.float64]) -> str:
        """A text in a language drawn by the first number, half of the time the first; tags by the others."""
        known = [text for text in one.texts if text]
        label, *tags = known[0 if random[0] < 0.5 else int((2 * random[0] - 1) * len(known))]
        order = [tags[place] for place in np.argsort(random[2 : 2 + len(tags)]) if random[2 + place] < 0.5]
        if random[1] < 0.4 and order:  # tags alone, so that each of them comes to mean something
            return ", ".join(order)
        return ", ".join((label, *order))

    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True, language: int = 0) -> ImageTextBatch:
        examples = [self.examples[part][number] for number in numbers]
        texts = [", ".join(next(text for text in (one.texts[language], *one.texts) if text)) for one in examples]
        images = self._picked([one.pictures[0] for one in examples])
        categories = np.array([one.category for one in examples]) if counts else np.full(len(examples), IGNORE_INDEX)
        batch = self._batch(images, *self.rows.rows(texts), categories)
        batch = batch._replace(language=language)
        return with_prompts(batch, *self.prompts[language], names=self.names) if self.prompts else batch

    def held_out(self, count: int) -> list[Example]:
        """The first examples of the test or validation part, without their texts."""
        part: Part = "test" if self.examples["test"] else "validation"
        found = []
        for number, one in enumerate(self.examples[part][:count]):
            batch = self.part_batch(part, np.array([number]))._replace(tokens=None, lengths=None)
            given = self.names[one.category] if one.category >= 0 else None
            found.append(Example(f"{part} example {number}, {one.title}", batch, given))
        return found

    def in_order(self, part: Part, size: int, rank: int = 0, world: int = 1) -> Iterator[ImageTextBatch]:
        """Sets of ``CANDIDATES`` examples, whatever ``size`` is; of the last set, those of the set before it fill it.

        They are candidates there, but do not count again.
        """
        count = len(self.examples[part])
        sets = [(start, language) for language in self._evaluated(part) for start in range(0, count, CANDIDATES)]
        for place in range(rank, -(-len(sets) // world) * world, world):
            start, language = sets[place % len(sets)]
            numbers = np.arange(min(start, max(0, count - CANDIDATES)), min(start + CANDIDATES, count))
            batch = self.part_batch(part, numbers, language=language)
            counted = (numbers >= start) & (place < len(sets))  # every rank needs a batch, even one that counts nothing
            batch.targets[np.flatnonzero(~counted).tolist()] = IGNORE_INDEX
            yield batch

    def _evaluated(self, part: Part) -> range:
        return range(len(self.languages) if part == "test" else 1)

    def _picked(self, pictures: list[int]) -> Tensor:
        """Images as numbers from -1 to 1."""
        import torch  # not at the top: configs are read without torch

        return to_floats(torch.from_numpy(self.images[pictures]))

    def _batch(self, images: Tensor, tokens: Tokens, lengths: Tokens, categories: Numbers) -> ImageTextBatch:
        import torch

        if images.shape[2:] != self.shape[1:]:
            images = torch.nn.functional.interpolate(images, self.shape[1:], mode="bilinear")
        given = (torch.from_numpy(array) for array in (categories[:, None], tokens, lengths))
        return ImageTextBatch(images, *given)  # pyright: ignore[reportArgumentType]


def prompted(examples: list[Example], prompts: tuple[str, ...], rows: TextRows) -> list[Example]:
    """The examples with texts to choose from, each of which is a class."""
    if len(prompts) < 2:
        raise UserError("one text leaves nothing to choose; give two or more: --prompt TEXT --prompt TEXT")
    texts = (*rows.rows(prompts), np.arange(len(prompts)))
    return [one._replace(batch=with_prompts(one.batch, *texts, names=prompts), given=None) for one in examples]


def image_text_examples(path: Path, model: ModelConfig) -> list[Example]:
    """The images of a file or a folder, without texts."""
    from regard.models import TwoTowersConfig

    return [
        Example(one.name, ImageTextBatch(one.batch.inputs, one.batch.targets))
        for one in image_examples(path, model.image if isinstance(model, TwoTowersConfig) else model)
    ]


def with_prompts(
    batch: ImageTextBatch, tokens: Tokens, lengths: Tokens, classes: Tokens | None = None, names: tuple[str, ...] = ()
) -> ImageTextBatch:
    """The batch with prompts [P, T], and their classes [P] of these names; without classes, as hard negatives."""
    import torch

    batch = batch._replace(prompts=torch.from_numpy(tokens), prompt_lengths=torch.from_numpy(lengths), names=names)
    return batch if classes is None else batch._replace(prompt_classes=torch.from_numpy(classes))
