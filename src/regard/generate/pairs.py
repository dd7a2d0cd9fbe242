"""Vectors of images and texts by a model with two towers: of length 1, so that dot products are cosines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.base import Example
from regard.data.imagetext.data import TextRows
from regard.data.tokenizers import Tokenizer
from regard.models.base import PairEncoder
from regard.models.device import parameter_device

AT_ONCE = 64  # images or texts


class PairVectors:
    """Images and texts to vectors of one space, by a model in evaluation mode. A longer text is cut."""

    def __init__(self, model: PairEncoder, tokenizer: Tokenizer):
        self.model, self.rows = model, TextRows(tokenizer, model.text.config.context)

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """One vector for each text, [T, D] in float32 on the CPU."""
        device, found = parameter_device(self.model), []
        for start in range(0, len(texts), AT_ONCE):
            tokens, lengths = self.rows.rows(texts[start : start + AT_ONCE])
            given = (torch.from_numpy(one).to(device) for one in (tokens[:, : lengths.max()], lengths))
            found.append(self.model.text_vectors(*given))
        return F.normalize(torch.cat(found).float().cpu(), dim=-1)

    @torch.no_grad()
    def images(self, examples: Sequence[Example]) -> Tensor:
        """One vector for each image, [T, D] in float32 on the CPU."""
        device, found = parameter_device(self.model), []
        for start in range(0, len(examples), AT_ONCE):
            images = torch.cat([one.batch.inputs for one in examples[start : start + AT_ONCE]])
            found.append(self.model(images.to(device))[:, 0])
        return F.normalize(torch.cat(found).float().cpu(), dim=-1)
