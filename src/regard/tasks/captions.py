"""Captions of images: the cross entropy of the next token of a text in which images are followed by their captions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import option
from regard.data.base import IGNORE_INDEX, Data, ImageTextBatch
from regard.data.imagetext.data import ImageTextData
from regard.data.scenes.data import SceneBatch, SceneData
from regard.data.scenes.grammar import LONGEST, caption_of
from regard.models import Captioner, CaptionerConfig, ModelConfig
from regard.models.captioner import MARKS
from regard.tasks.base import Measured, Predicting, Prediction, Term, with_auxiliary_losses
from regard.tasks.language import CrossEntropyConfig, summed_cross_entropy


@dataclass(frozen=True)
class CaptionsConfig(CrossEntropyConfig, kind="captions"):
    """Write captions of images, after those of other images as examples."""

    trains, examples = Captioner, (SceneData, ImageTextData)
    kinds_of_data = "images with captions: --data scenes or image-text"
    pairs: int = option(
        1, "images with captions in a text; the last ones have the others as examples (few-shot)", least=1
    )
    words: float = option(0.0, "weight of a second loss: an image's words from the mean of its tokens", least=0)
    smoothing: float = option(0.0, "label smoothing, in training only", least=0, below=1)
    word_dropout: float = option(
        0.0, "hide this share of the words from the model while it learns to predict others", least=0, below=1
    )

    @property
    def read_together(self) -> int:
        return self.pairs

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with room for all captions of a text."""
        assert isinstance(model, CaptionerConfig)
        longest = data.rows.longest if isinstance(data, ImageTextData) else LONGEST
        return replace(model, context=self.pairs * (longest + MARKS), text=data.tokenizer is not None)

    def build(self) -> CaptionsTask:
        return CaptionsTask(self)


class Interleaved(NamedTuple):
    """Texts of some images with their captions: a mark, the words, an end mark, and so on."""

    source: Tensor  # [G, P, M, Y, X]
    counts: Tensor  # [G]: P
    inputs: Tensor  # [G, L]
    targets: Tensor  # [G, L]; IGNORE_INDEX: the mark of the next image, padding, or a caption that does not count

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the model is called with."""
        return self.inputs, self.source, self.counts


def caption_rows(batch: SceneBatch | ImageTextBatch) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens [R, T] of captions, below 0 what cannot be known; their lengths [R]; and which of them count, [R]."""
    if isinstance(batch, SceneBatch):
        return batch.captions, (batch.captions != 0).sum(1), batch.captions[:, 0] > 0
    if batch.tokens is None or batch.lengths is None:  # images alone
        none = batch.targets.new_zeros(len(batch.targets))
        return none[:, None], none, none > 0
    return batch.tokens, batch.lengths, batch.targets[:, 0] != IGNORE_INDEX


def interleaved(batch: SceneBatch | ImageTextBatch, pairs: int, marks: tuple[int, int], shift: int = 0) -> Interleaved:
    """Texts of ``pairs`` successive images each, from image number ``shift`` on.

    The last text is filled up with images of the first, which do not count again. ``marks``: of an image, and the end.
    """
    tokens, lengths, counted = caption_rows(batch)
    (rows, longest), pairs = tokens.shape, min(pairs, len(tokens))
    number = torch.arange(-(-rows // pairs) * pairs, device=tokens.device)
    first, number = number < rows, (number + shift) % rows
    tokens, lengths, counted = tokens[number], lengths[number, None], (counted[number] & first)[:, None]
    place = torch.arange(longest + MARKS, device=tokens.device)
    text = F.pad(tokens, (1, 1)).where(place > 0, marks[0]).where(place != lengths + 1, marks[1])
    real = place <= lengths + 1
    wanted = real & (place > 0) & counted & (text >= 0)
    text = text.where(text >= 0, marks[1])
    text, real, wanted = (x.reshape(-1, pairs * len(place)) for x in (text, real, wanted))
    order = (~real).int().sort(dim=1, stable=True).indices  # padding goes behind all captions
    text, wanted = text.gather(1, order), wanted.gather(1, order)
    targets = text[:, 1:].where(wanted[:, 1:], IGNORE_INDEX)
    source = batch.inputs[number].unflatten(0, (-1, pairs))
    return Interleaved(source, torch.full_like(source[:, 0, 0, 0, 0], pairs).long(), text[:, :-1], targets)


class CaptionsTask(Measured[CaptionsConfig], Predicting):
    """The cross entropy of captions and their ends.

    Measures: the share of captions that greedy decoding writes exactly, and the cross entropy of a token; with several
    images in a text also after each number of examples, where every image of a batch has its turn.
    """

    best = "caption_exact"

    def terms(self, model: Captioner, batch: Any) -> dict[str, Term]:
        return self._terms(model, self._texts(model, batch))[0]

    def counts(self, batch: Any) -> dict[str, Tensor]:
        tokens, lengths, counted = caption_rows(batch)
        words = ((lengths - (tokens < 0).sum(1)) * counted).sum()
        return {"caption": words + counted.sum(), **({"words": words} if self.config.words else {})}

    def _texts(self, model: Captioner, batch: Any, shift: int = 0) -> Interleaved:
        marks = (model.config.image_mark, model.config.end_mark)
        texts = interleaved(batch, self.config.pairs, marks, shift)
        if not model.training or not self.config.word_dropout:
            return texts
        kept = F.dropout(torch.ones_like(texts.inputs, dtype=torch.float32), self.config.word_dropout) > 0
        hidden = ~kept & (texts.inputs < marks[0])
        return texts._replace(inputs=texts.inputs.masked_fill(hidden, marks[1]))  # an end mark tells nothing here

    def _terms(self, model: Captioner, texts: Interleaved) -> tuple[dict[str, Term], Tensor]:
        most = texts.source.shape[1]
        memory = model.encode(texts.source)
        read = partial(model.read, texts.inputs, memory, most, texts.counts)
        features, further, details = with_auxiliary_losses(model, read)
        limit, targets = self.config.logits, texts.targets
        smoothing = self.config.smoothing if model.training else 0.0
        total = summed_cross_entropy(model, features.flatten(0, 1), targets.flatten(), limit, smoothing)
        # A caption has other rows of the batch as its examples, so parts of a batch have another loss.
        term = Term(total, (targets != IGNORE_INDEX).sum(), additive=self.config.pairs == 1, details=details)
        if self.config.words:
            further["words"] = self._words(model, texts, memory)
        return {"caption": term, **further}, features

    def _words(self, model: Captioner, texts: Interleaved, memory: Tensor) -> Term:
        """The cross entropy of each word of a caption, in any order, from the mean of the image's tokens.

        Joulin et al. 2016, eq. 2. The decoder's head reads the mean, so words and image tokens come to share a space.
        """
        means = memory.unflatten(1, (texts.source.shape[1], -1)).mean(2)  # [G, P, C]
        image = model.image_of(texts.inputs)[..., None].expand(-1, -1, means.shape[-1])
        targets = texts.targets.where(texts.targets < model.config.image_mark, IGNORE_INDEX)  # without the ends
        total = summed_cross_entropy(
            model, means.gather(1, image).flatten(0, 1), targets.flatten(), self.config.logits, 0.0
        )
        return Term(total, (targets != IGNORE_INDEX).sum(), self.config.words)

    def measured(self, model: Captioner, batch: Any) -> tuple[dict[str, Term], Tensor]:
        """The statistics are [P, 4]: exact captions, captions, cross entropy and tokens, by the number of examples."""
        terms, sums = {}, torch.zeros(self.config.pairs, 4, dtype=torch.float64, device=batch.inputs.device)
        for shift in range(self.config.pairs):
            texts = self._texts(model, batch, shift)
            found, features = self._terms(model, texts)
            terms = terms or found
            logits, counted = model.head(features).float(), texts.targets != IGNORE_INDEX
            losses = F.cross_entropy(logits.mT, texts.targets, ignore_index=IGNORE_INDEX, reduction="none")
            # Greedy decoding writes a caption exactly if each word is the likeliest one after the true ones before it.
            wrong = (logits.argmax(-1) != texts.targets) & counted
            numbers = torch.stack((wrong, counted, losses, counted), dim=-1).double()  # [G, L, 4]
            own = model.image_of(texts.inputs)[..., None].expand_as(numbers)
            each = numbers.new_zeros(len(numbers), texts.source.shape[1], 4).scatter_add(1, own, numbers)
            some = each[..., 1] > 0
            each[..., 0] = some & (each[..., 0] == 0)
            each[..., 1] = some
            sums[: each.shape[1]] += each.sum(0)
        return terms, sums.flatten()

    def metrics(self, sums: Tensor) -> dict[str, float]:
        rows = sums.view(-1, 4)
        several = enumerate(rows) if len(rows) > 1 else ()
        found = _measures("caption_exact", "token_loss", rows.sum(0))
        for examples, row in several:
            found |= _measures(f"exact_after_{examples}", f"token_loss_after_{examples}", row)
        return found

    def predictions(self, model: Captioner, batch: Any) -> list[Prediction]:
        """The caption of each image, by greedy decoding without examples."""
        decode = caption_of if self.tokenizer is None else self.tokenizer.decode
        texts = [decode(tokens) for tokens in written(model, batch.inputs)]
        return [Prediction(text, {"caption": text}) for text in texts]


def _measures(exact: str, loss: str, row: Tensor) -> dict[str, float]:
    right, captions, total, tokens = row.tolist()
    return {exact: right / max(captions, 1), loss: total / max(tokens, 1)}


@torch.no_grad()
def written(model: Captioner, images: Tensor) -> list[list[int]]:
    """The likeliest tokens of a caption of each image [B, M, Y, X], up to the end mark."""
    mark, end = model.config.image_mark, model.config.end_mark
    counts = torch.ones(len(images), dtype=torch.long, device=images.device)
    most = model.config.context
    state = model.start(len(images), most, source=images[:, None], source_lengths=counts)
    tokens = [torch.full_like(counts, mark)]
    while len(tokens) < most and not torch.stack(tokens).eq(end).any(0).all():
        logits, state = model.step(tokens[-1][:, None], state)
        logits[..., mark] = -torch.inf
        tokens.append(logits[:, 0].argmax(-1))
    rows = torch.stack(tokens, dim=1)[:, 1:].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]
