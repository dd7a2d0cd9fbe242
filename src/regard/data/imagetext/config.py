"""Which images with texts an experiment trains on: emoji, or a folder of the user's own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from regard.config import option
from regard.data.base import DataConfig, Example
from regard.data.images.arrays import Pixels
from regard.data.images.data import Augmentation, attended_image
from regard.data.imagetext.captioned import Captioned, ImageTexts, read_captions
from regard.data.imagetext.data import ImageTextData, TextRows, image_text_examples, prompted
from regard.data.imagetext.emoji import SIDE, read_emoji
from regard.data.origins.cache import cache_folder
from regard.data.sources import all_sources, find_source
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import BpeConfig, Tokenizer, TokenizerConfig
from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

FORM, CAPTIONS = "emoji", "emoji-captions"


@dataclass(frozen=True)
class ImageTextConfig(DataConfig, kind="image-text"):
    """Images with texts about them."""

    path: str | None = option(None, "a folder of your own with images and captions.tsv: columns file, text and class")
    source: str = option("twemoji", "the emoji to fetch when no path is given; `regard data` lists them")
    styles: tuple[str, ...] = option((), "further sources of emoji, whose pictures are drawn in training as well")
    languages: tuple[str, ...] = option(("en",), "the languages of the texts; half of them are in the first one")
    size: int = option(32, "rows and columns of the images")
    tags: bool = option(True, "a text is a label and tags, rather than the label alone")
    alike: int = option(1, "so many successive texts in training are in one language")
    tokens: int = option(24, "cut longer texts to this many tokens")
    tokenizer: TokenizerConfig = field(default_factory=BpeConfig, metadata={"help": "the tokenizer of the texts"})
    validation: float = option(0.1, "the fraction of the examples held out for evaluation, in whole groups")
    test: float = option(0.1, "the fraction held out for a final test, in whole groups")
    crop: int = option(0, "augmentation: shift images by up to this many pixels, before they are enlarged")
    flip: bool = option(False, "augmentation: mirror every other image")
    affine: float = option(0.0, "augmentation: rotate (1: up to 29 degrees), scale and shear images this much")
    color: float = option(0.0, "augmentation: change brightness, contrast and saturation by up to this")
    erase: float = option(0.0, "augmentation: fill a rectangle of this share of the images")
    batch: int = option(128, "images per micro-batch; in evaluation, sets of 100")

    def check(self) -> None:
        """Refuse impossible values before anything is fetched."""
        check_fractions(self.validation, self.test)
        for name in ("size", "tokens", "alike", "batch"):
            if vars(self)[name] < 1:
                raise ValueError(f"{name} must be at least 1, not {vars(self)[name]}")
        if not self.languages or len(set(self.languages)) < len(self.languages):
            raise ValueError("languages needs one name at least, and each once, such as en,de")
        if self.crop < 0:
            raise ValueError(f"crop must be at least 0, not {self.crop}")
        for name in ("affine", "color", "erase"):
            if not 0 <= vars(self)[name] <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {vars(self)[name]}")
        if self.path is None and find_source(self.source).labels != FORM:
            known = ", ".join(name for name, source in all_sources().items() if source.labels == FORM)
            raise ValueError(f"source '{self.source}' has no images with texts; with them are: {known}")
        if self.path is None and SIDE % self.size and self.size % SIDE:
            raise ValueError(
                f"size {self.size} is no part or multiple of the emoji's {SIDE} pixels; size = 32 would do"
            )

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> ImageTextData:
        """Read, divide and tokenize. ``tokenizer``: that of a trained model; default: learn one from the texts."""
        self.check()  # a config made in Python was not loaded
        given, name = self.read(cache), self.path or self.source
        languages = tuple(language for language in self.languages if language in given.prompts)
        # All examples are divided, with pictures in this style or not: an emoji is in one part in every style.
        numbers = divide([one.group for one in given.examples], self.validation, self.test)
        train, validation, test = (self._shown(given, part) for part in numbers)
        if not train:
            raise UserError(f"no image of {name} is left for training; lower --data.validation and --data.test")
        if tokenizer is None:
            texts = (text for one in train for language in self.languages for text in one.texts.get(language, ()))
            tokenizer = self.tokenizer.build(f"{text}, {text}\n".lower() for text in texts)
        return ImageTextData(
            (train, validation, test),
            images := shrunk(given.images, min(self.size, given.images.shape[2])),
            TextRows(tokenizer, self.tokens),
            size=self.size,
            name=name,
            sha256=_fingerprint(images, (train, validation, test)),
            languages=languages,
            categories=given.categories,
            prompts=[given.prompts[language] for language in languages],
            tags=self.tags,
            alike=self.alike,
            augmentation=Augmentation(self.crop, self.flip, self.affine, self.color, self.erase),
        )

    def read(self, cache: Path | None = None) -> ImageTexts:
        """The images with their texts, before they are divided."""
        if self.path is not None:
            return read_captions(Path(self.path).expanduser(), self.size, self.languages[0])
        cache = cache or cache_folder()
        captions = find_source(CAPTIONS).fetch(cache)
        found, *others = (read_emoji(find_source(one).fetch(cache), captions) for one in (self.source, *self.styles))
        for other in others:
            found = found.with_pictures(other)
        if unknown := [language for language in self.languages if language not in found.prompts]:
            raise UserError(f"emoji have no texts in {unknown[0]!r}; choose from {', '.join(found.prompts)}")
        return found

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return attended_image(batch.inputs, weights)

    def with_source(self, source: str) -> Self:
        own = Path(source).expanduser().exists()
        other = replace(self, path=source if own else None, source=self.source if own else source, styles=())
        try:
            other.check()
        except ValueError as problem:
            raise UserError(f"--source {source}: {problem}") from problem
        return other

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        return image_text_examples(path, model)

    def prompted(self, examples: list[Example], prompts: tuple[str, ...], tokenizer: Tokenizer) -> list[Example]:
        return prompted(examples, prompts, TextRows(tokenizer, self.tokens))

    def _shown(self, given: ImageTexts, numbers: list[int]) -> list[Captioned]:
        """The examples that have pictures and texts, in an order that has nothing to do with their names."""
        some = [given.examples[number] for number in numbers]
        some = [one for one in some if one.pictures and any(one.texts.get(language) for language in self.languages)]
        return sorted(some, key=lambda one: hashlib.sha256(one.name.encode("utf-8", "surrogatepass")).digest())


def shrunk(images: Pixels, size: int) -> Pixels:
    """Images [N, M, Y, X] as squares of ``size``, which divides theirs: means over squares of pixels, rounded."""
    count, channels, rows, _ = images.shape
    if rows == size:
        return images
    step = rows // size
    sums = images.reshape(count, channels, size, step, size, step).sum((3, 5), dtype="uint32")
    return ((sums + step * step // 2) // (step * step)).astype("uint8")


def _fingerprint(images: Pixels, parts: tuple[list[Captioned], ...]) -> str:
    digest = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass"))
    digest.update(images.tobytes())
    return digest.hexdigest()
