"""Masked image modeling: predict the pixels of patches that are hidden (He et al. 2022; Xie et al. 2022, SimMIM)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.config import option
from regard.data.base import Data, ImageBatch
from regard.data.images.data import ImageData
from regard.errors import UserError
from regard.models import ImageEncoder, ModelConfig, ViT, ViTConfig
from regard.nn.heads import PixelsHeadConfig
from regard.nn.patches import cut, joined
from regard.tasks.base import TaskConfig, Term, with_auxiliary_losses
from regard.tasks.masked import hashed

EPS = 1e-2  # added to the variance of a patch: most patches of a drawing are of one color


@dataclass(frozen=True)
class MaskedPatchesConfig(TaskConfig, kind="masked-patches"):
    """Predict the pixels of masked patches from the others."""

    trains, examples, unit = ImageEncoder, ImageData, "image"
    kinds_of_data = "images: --data images"
    share: float = option(0.6, "share of each image's patches to mask", above=0, below=1)

    def fit(self, data: Data) -> MaskedPatchesConfig:
        super().fit(data)
        assert isinstance(data, ImageData)
        if data.augmentation.mixup or data.augmentation.cutmix:
            raise UserError(f"the task {self.kind} has no use for mixed images; set --data.mixup 0 --data.cutmix 0")
        return self

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with a head for the pixels of a patch."""
        if not isinstance(model, ViTConfig):
            raise UserError(f"the task {self.kind} trains a Vision Transformer, and this model is of kind {model.kind}")
        return replace(model, head=PixelsHeadConfig(model.channels * model.patch**2))

    def build(self) -> MaskedPatches:
        return MaskedPatches(self)


class MaskedPatches:
    """The mean squared error of the pixels of masked patches, each patch normalized (He et al. 2022, sec. 4.1).

    A masked patch is gray, so that its embedding is the bias of the embedding: this is the learned mask token of the
    papers. Exactly max(1, round(share · N)) of N patches are masked. The choice is a hash of the pixels: it depends
    neither on the other images nor on where a run was resumed, and with a crop or a flip it differs between epochs.
    """

    def __init__(self, config: MaskedPatchesConfig | None = None):
        self.config = config or MaskedPatchesConfig()

    def terms(self, model: ViT, batch: ImageBatch) -> dict[str, Term]:
        """The term `masked_patches`, a sum over images, and, in training, the model's auxiliary losses."""
        images, patch = batch.inputs, model.part[0]
        patches = cut(images, patch)  # [B, N, P]
        masked = self.masked(patches)  # [B, N]
        hidden = joined(patches.masked_fill(masked[:, :, None], 0.0), images.shape[3] // patch, images.shape[1])
        x, further, details = with_auxiliary_losses(model, lambda: model.features(hidden))
        predicted = model.head(x[:, model.before :]).float()
        mean, variance = patches.mean(2, keepdim=True), patches.var(2, correction=0, keepdim=True)
        errors = (predicted - (patches - mean) / (variance + EPS).sqrt()).square().mean(2)
        total = (errors.masked_fill(~masked, 0.0).sum(1) / masked.sum(1)).sum()
        return {"masked_patches": Term(total, self.counts(batch)["masked_patches"], details=details), **further}

    def counts(self, batch: ImageBatch) -> dict[str, Tensor]:
        """How many images the batch has."""
        return {"masked_patches": torch.tensor(len(batch.inputs))}

    def masked(self, patches: Tensor) -> Tensor:
        """Which patches [B, N, P] are hidden, [B, N]."""
        count, pixels = patches.shape[1], (patches.float() * 127.5 + 127.5).round().long().flatten(1)
        place = torch.arange(pixels.shape[1], device=patches.device)
        key = (pixels * (place * 7919 + 104729)).sum(1, keepdim=True)
        scores = hashed(key + torch.arange(count, device=patches.device) * 65537)
        chosen = scores.argsort(dim=1, stable=True)[:, : max(1, round(self.config.share * count))]
        return torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
