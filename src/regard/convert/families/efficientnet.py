"""EfficientNet-Lite (Tan and Le 2019), whose batch normalization was folded into its convolutions; without its head."""

from __future__ import annotations

from regard.config.notation import JsonObject
from regard.convert.family import Family, Settings
from regard.models import EfficientNetConfig
from regard.models.base import ModelConfig
from regard.nn.heads import NoHeadConfig


class EfficientNetLite(Family):
    """Encoders of images, as `regard.convert.folding` writes them."""

    kinds = ("efficientnet-lite",)
    keys = """
        embed.weight                 embed.weight
        embed.bias                   embed.bias
        blocks.*.expand.weight       blocks.*.expand.weight
        blocks.*.expand.bias         blocks.*.expand.bias
        blocks.*.depthwise.weight    blocks.*.depthwise.weight
        blocks.*.depthwise.bias      blocks.*.depthwise.bias
        blocks.*.project.weight      blocks.*.project.weight
        blocks.*.project.bias        blocks.*.project.bias
    """

    def config(self, kind: str, given: Settings) -> EfficientNetConfig:
        return EfficientNetConfig(image=given.size("image_size", 224), head=NoHeadConfig())

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        return None  # `transformers` has no such model
