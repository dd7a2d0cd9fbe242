"""The hybrid of convolutions and a Vision Transformer (Dosovitskiy et al. 2021, sec. 3.1): for few images."""

from dataclasses import dataclass

from regard.models.vit import ViTConfig
from regard.nn.patches import ConvolutionEmbedding, PatchEmbedding


@dataclass(frozen=True)
class HybridViTConfig(ViTConfig, kind="hybrid-vit"):
    """A Vision Transformer whose patches come from convolutions: it learns from fewer images than `vit`."""

    def check(self) -> None:
        super().check()
        if self.patch < 2 or self.patch & (self.patch - 1):
            raise ValueError(f"the convolutions halve the grid, so patch is 2, 4, 8 or 16, not {self.patch}")

    def build_embedding(self) -> PatchEmbedding:
        return ConvolutionEmbedding(self.patch, self.channels, self.width)
