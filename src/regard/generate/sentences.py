"""Sentence vectors: the mean of an encoder's features, of length 1, so that dot products are cosines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention import Padded
from regard.data.tokenizers import PublishedTokenizer, Tokenizer
from regard.errors import UserError
from regard.models.base import Encoder
from regard.models.device import parameter_device
from regard.nn.heads import sentence_vectors

TOKENS = 8192  # of a batch, padding included


class SentenceEncoder:
    """Texts to vectors (Reimers & Gurevych 2019, sec. 3), by an encoder in evaluation mode and its tokenizer.

    A text longer than the model's context is cut.
    """

    def __init__(self, model: Encoder, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.longest = model.limit or model.config.context

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """One vector of length 1 for each text, [T, C] in float32 on the CPU."""
        ids, device = self._encoded(texts), parameter_device(self.model)
        if empty := [number for number, one in enumerate(ids, start=1) if not len(one)]:
            raise UserError(f"text {empty[0]} is empty; leave it out")
        found = torch.zeros(len(ids), self.model.config.width)
        for rows in batches_by_length([len(one) for one in ids]):
            tokens = pad_sequence([ids[row] for row in rows], batch_first=True).to(device)
            lengths = torch.tensor([len(ids[row]) for row in rows], device=device)
            slots = Padded(lengths, tokens.shape[1])
            found[rows] = sentence_vectors(self.model.features(tokens, slots), slots.filled()).float().cpu()
        return found

    def _encoded(self, texts: Sequence[str]) -> list[Tensor]:
        if isinstance(self.tokenizer, PublishedTokenizer):
            return [torch.from_numpy(one.ids) for one in self.tokenizer.encode_texts(texts, self.longest)]
        return [torch.from_numpy(self.tokenizer.encode(text)[: self.longest]) for text in texts]


def batches_by_length(lengths: Sequence[int], most: int = TOKENS) -> Iterator[list[int]]:
    """The numbers of texts of similar lengths, at most ``most`` tokens at a time."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (len(rows) + 1) * lengths[row] > most:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
