"""The losses of text to image: an autoencoder of images, and a language model of captions and codes in both orders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX
from regard.data.scenes.data import SceneBatch, SceneData
from regard.data.scenes.grammar import caption_of
from regard.models.text_to_image import TextToImage
from regard.tasks.base import Measured, Predicting, Prediction, Term
from regard.tasks.language import CrossEntropyConfig, count_targets, summed_cross_entropy


@dataclass(frozen=True)
class TextToImageTaskConfig(CrossEntropyConfig, kind="text-to-image"):
    """Learn the codes of images, to draw captions and to caption images."""

    trains, examples, unit = TextToImage, SceneData, "scene"
    kinds_of_data = "--data scenes"
    pixels: float = option(1.0, "weight of the squared error of pixels in the loss")
    codebook: float = option(1.0, "weight of the loss of the codebook")

    def build(self) -> TextToImageTask:
        return TextToImageTask(self)


class TextToImageTask(Measured[TextToImageTaskConfig], Predicting):
    """Cross entropy of the codes after a caption and of the caption after codes, and the losses of the autoencoder.

    Measures: the share of captions that greedy decoding writes exactly, and the mean squared error of pixels.
    """

    best = "caption_exact"

    def counts(self, batch: SceneBatch) -> dict[str, Tensor]:
        rows = (batch.captions[:, 0] != IGNORE_INDEX).sum()
        return {"image": rows, "caption": count_targets(batch.captions), "pixels": rows, "codebook": rows}

    def measured(self, model: TextToImage, batch: SceneBatch) -> tuple[dict[str, Term], Tensor]:
        counted = batch.captions[:, 0] != IGNORE_INDEX
        found = model.coder(batch.inputs)
        codes = found.codes + model.config.words
        read = _order(codes, batch.captions)
        drawn = _order(batch.prompts, codes.masked_fill(~counted[:, None], IGNORE_INDEX))
        features = model.features(torch.cat((read[0], drawn[0])))  # both orders have the same length
        captions, images = (
            summed_cross_entropy(model, part.flatten(0, 1), targets.flatten(), self.config.logits, 0.0)
            for part, (_, targets) in zip(features.chunk(2), (read, drawn), strict=True)
        )
        errors = (found.images - batch.inputs).square().flatten(1).mean(1)
        rows, count = counted.sum(), self.counts(batch)["caption"]
        terms = {
            "image": Term(images / model.config.length, rows),
            "caption": Term(captions, count),
            "pixels": Term((errors * counted).sum(), rows, self.config.pixels),
            "codebook": Term((found.loss * counted).sum(), rows, self.config.codebook),
        }
        if model.training:
            return terms, rows.new_zeros(3)
        written = model.head(features.chunk(2)[0][:, -batch.captions.shape[1] :]).argmax(-1)
        exact = ((written == batch.captions).all(1) & counted).sum()
        return terms, torch.stack((exact.double(), (errors * counted).sum().double(), rows.double()))

    def metrics(self, sums: Tensor) -> dict[str, float]:
        exact, errors, count = sums.tolist()
        return {"caption_exact": exact / max(count, 1), "pixel_error": errors / max(count, 1)}

    def predictions(self, model: TextToImage, batch: SceneBatch) -> list[Prediction]:
        """The caption of each image, by greedy decoding."""
        tokens = model.coder.encode(batch.inputs) + model.config.words
        for _ in range(batch.captions.shape[1]):
            tokens = torch.cat((tokens, model(tokens)[:, -1:, : model.config.words].argmax(-1)), dim=1)
        texts = [caption_of(row[model.config.length :]) for row in tokens.tolist()]
        return [Prediction(text, {"caption": text}) for text in texts]


def _order(given: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, N] of a language model that continues ``given`` with ``wanted``; only these count."""
    tokens = torch.cat((given, wanted), dim=1).clamp(min=0)
    targets = F.pad(wanted, (given.shape[1] - 1, 0), value=IGNORE_INDEX)
    return tokens[:, :-1], targets
