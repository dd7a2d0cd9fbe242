"""Scenes of digits with their captions as texts, for two towers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.config import option
from regard.data.base import Example, ImageTextBatch
from regard.data.examples import Numbers, Uniform
from regard.data.images.data import attended_image
from regard.data.imagetext.captioned import Captioned, Prompts
from regard.data.imagetext.data import ImageTextData, TextRows, image_text_examples, prompted, with_prompts
from regard.data.scenes.data import PARTS, RECOLOR_DRAWS, SceneData, ScenesConfig
from regard.data.scenes.grammar import COLORS, Caption, every_caption, rearranged, reworded
from regard.data.tokenizers import Tokenizer, WordsConfig

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import ModelConfig

TOKENS = 12  # of a text, at most: "two red 3s left of two blue 7s" has ten
VOCABULARY = 320  # bytes, and the words of captions
LANGUAGE = "en"
NEGATIVES = 4  # captions that are nearly right, for each scene in training:
REARRANGED = 2  # so many have the same words elsewhere, the others one other word


class SceneTextData(ImageTextData):
    """Scenes whose texts are their captions, and which are classified by all captions that there are.

    In training a caption begins with either group, and that of a recolored scene names no colors. With each come
    captions that are nearly right, as hard negatives (Yuksekgonul et al. 2023, NegCLIP, sec. 4): without them, to know
    what is in a scene is enough, and what belongs to what is not learned.
    """

    draws = RECOLOR_DRAWS + 1 + NEGATIVES

    def __init__(self, scenes: SceneData, rows: TextRows) -> None:
        every = [str(caption) for caption in every_caption()]
        numbers = {text: number for number, text in enumerate(every)}
        counts = (scenes.count, scenes.validation_count or 0, scenes.test_count or 0)
        sizes = dict(zip(PARTS, counts, strict=True))
        self.captions = {part: [scenes.caption(part, n) for n in range(count)] for part, count in sizes.items()}
        images, parts = [], []
        for part in PARTS:
            captions, first = self.captions[part], len(images)
            images += [scenes.scene(part, number).image for number in range(len(captions))]
            parts.append(
                [
                    Captioned(text, (first + n,), {LANGUAGE: [text]}, "", numbers[text])
                    for n, text in enumerate(map(str, captions))
                ]
            )
        super().__init__(
            (parts[0], parts[1], parts[2]),
            np.stack(images),
            rows,
            size=images[0].shape[-1],
            name=scenes.name,
            sha256=str(scenes.sha256),
            languages=(LANGUAGE,),
            categories=tuple(every),
            prompts=[Prompts(tuple(every), tuple(range(len(every))))],
        )
        self.labels = ()  # captions are too many to be classes for anything but prompts
        self.recolor = scenes.recolor

    def train_batch(self, numbers: Numbers, random: Uniform) -> ImageTextBatch:
        from regard.data.images import augment  # not at the top: configs are read without torch

        examples = [self.examples["train"][number] for number in numbers]
        colored, turned, picks = random[:, 0] >= self.recolor, random[:, RECOLOR_DRAWS] < 0.5, random[:, -NEGATIVES:]
        texts, others = [], []
        for number, *form, draws in zip(numbers, colored, turned, picks, strict=True):
            caption = self.captions["train"][number]
            plain = worded(caption, colors=form[0])
            moved, changed = (
                [worded(one, colors=form[0], turned=form[1]) for one in kind if worded(one, colors=form[0]) != plain]
                for kind in (rearranged(caption), reworded(caption))
            )
            texts.append(worded(caption, colors=form[0], turned=form[1]))
            others += [_drawn(moved or changed, draw) for draw in draws[:REARRANGED]]
            others += [_drawn(changed, draw) for draw in draws[REARRANGED:]]
        images = self._picked([one.pictures[0] for one in examples])
        images = augment.recolor(images, random[:, :RECOLOR_DRAWS], self.recolor)
        batch = self._batch(images, *self.rows.rows(texts), np.array([one.category for one in examples]))
        return with_prompts(batch, *self.rows.rows(others))


def _drawn(texts: list[str], number: float) -> str:
    return texts[int(number * len(texts))]


def worded(caption: Caption, *, colors: bool, turned: bool = False) -> str:
    """The text of a caption, with or without the words for colors; ``turned``: it begins with the other group.

    >>> from regard.data.scenes.grammar import parse
    >>> worded(parse("two red 3s below a blue 7"), colors=False)
    'two 3s below a 7'
    """
    return " ".join(
        word for word in str(caption.inverse if turned else caption).split() if colors or word not in COLORS
    )


@dataclass(frozen=True)
class SceneTextsConfig(ScenesConfig, kind="scene-texts"):
    """Scenes of colored digits with captions as texts."""

    recolor: float = option(0.0, "augmentation: mix the channels of this share of images; their texts name no color")
    batch: int = option(128, "scenes per micro-batch; in evaluation, sets of 100")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SceneTextData:
        """Make the scenes. ``tokenizer``: that of a trained model; default: one with the words of all captions."""
        if tokenizer is None:
            tokenizer = WordsConfig(vocabulary=VOCABULARY).build(f"{one}\n{one.inverse}\n" for one in every_caption())
        return SceneTextData(super().build(context, cache), TextRows(tokenizer, TOKENS))

    def picture(self, batch: Any, weights: Tensor, model: ModelConfig) -> str | None:
        return attended_image(batch.inputs, weights)

    def read_examples(self, path: Path, model: ModelConfig) -> list[Example]:
        return image_text_examples(path, model)

    def prompted(self, examples: list[Example], prompts: tuple[str, ...], tokenizer: Tokenizer) -> list[Example]:
        return prompted(examples, prompts, TextRows(tokenizer, TOKENS))
