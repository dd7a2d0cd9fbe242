"""ViT (Dosovitskiy et al. 2021), and models of its form such as DeiT without distillation."""

from __future__ import annotations

from typing import Any

from regard.convert.families.encoders import ACTIVATIONS, read_labels, write_labels
from regard.convert.family import Family, JsonObject, Settings
from regard.errors import UserError
from regard.models import ViTConfig
from regard.models.base import Model, ModelConfig
from regard.nn.attention import SeparateConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig, NoHeadConfig
from regard.nn.norm import LayerNormConfig

SIZES = {
    "image": ("image_size", 224),
    "patch": ("patch_size", 16),
    "channels": ("num_channels", 3),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "width": ("hidden_size", 768),
    "hidden": ("intermediate_size", 3072),
}


class Vit(Family):
    """Encoders of images with a class token and learned positions. The pooler of a bare model is not used."""

    kinds = ("vit",)
    prefix = "vit."
    unused = r"vit\.pooler\..*"
    keys = """
        embed_class.weight               vit.embeddings.cls_token                                            row
        position.table.weight            vit.embeddings.position_embeddings                                  row
        embed.project.weight             vit.embeddings.patch_embeddings.projection.weight                   kernel={}
        embed.project.bias               vit.embeddings.patch_embeddings.projection.bias
        blocks.*.norm_attention.gain     vit.encoder.layer.*.layernorm_before.weight
        blocks.*.norm_attention.bias     vit.encoder.layer.*.layernorm_before.bias
        blocks.*.attention.qkv.weight    vit.encoder.layer.*.attention.attention.{query,key,value}.weight
        blocks.*.attention.qkv.bias      vit.encoder.layer.*.attention.attention.{query,key,value}.bias
        blocks.*.attention.out.weight    vit.encoder.layer.*.attention.output.dense.weight
        blocks.*.attention.out.bias      vit.encoder.layer.*.attention.output.dense.bias
        blocks.*.norm_feedforward.gain   vit.encoder.layer.*.layernorm_after.weight
        blocks.*.norm_feedforward.bias   vit.encoder.layer.*.layernorm_after.bias
        blocks.*.feedforward.up.weight   vit.encoder.layer.*.intermediate.dense.weight
        blocks.*.feedforward.up.bias     vit.encoder.layer.*.intermediate.dense.bias
        blocks.*.feedforward.down.weight vit.encoder.layer.*.output.dense.weight
        blocks.*.feedforward.down.bias   vit.encoder.layer.*.output.dense.bias
        norm.gain                        vit.layernorm.weight
        norm.bias                        vit.layernorm.bias
        unembed.weight                   classifier.weight
        unembed.bias                     classifier.bias
    """

    def config(self, kind: str, given: Settings) -> ViTConfig:
        sizes: dict[str, Any] = {ours: given.size(*named) for ours, named in SIZES.items()}
        hidden = sizes.pop("hidden")
        given.require("hidden_act", *ACTIVATIONS)
        given.ignore("encoder_stride", "pooler_act", "pooler_output_size")  # of heads that are not imported
        return ViTConfig(
            **sizes,
            dropout=given.get("hidden_dropout_prob", 0.0),
            attention_dropout=given.get("attention_probs_dropout_prob", 0.0),
            projection=SeparateConfig(bias=None if given.get("qkv_bias", True) else False),
            norm=LayerNormConfig(eps=given.get("layer_norm_eps", 1e-12)),
            feedforward=ACTIVATIONS[given.get("hidden_act", "gelu")](ratio=hidden / sizes["width"]),
            head=_head(given),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        if type(config) is not ViTConfig or not isinstance(config.norm, LayerNormConfig):  # no further kind of it
            return None
        activations = [name for name, own in ACTIVATIONS.items() if own is type(config.feedforward)]
        if not activations or not isinstance(config.projection, SeparateConfig):
            return None
        values = {**vars(config), "hidden": config.feedforward.hidden(config.width)}
        classifies = isinstance(config.head, ClassesHeadConfig)
        fields: JsonObject = {"architectures": ["ViTForImageClassification" if classifies else "ViTModel"]}
        fields |= {theirs: values[ours] for ours, (theirs, _) in SIZES.items()}
        dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        fields |= {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": dropout}
        fields |= {"hidden_act": activations[0], "layer_norm_eps": config.norm.eps}
        fields |= {"qkv_bias": config.projection.bias is not False}
        return fields | (write_labels(config.head) if isinstance(config.head, ClassesHeadConfig) else {})

    def table(self, model: Model) -> str:
        assert isinstance(model.config, ViTConfig)
        kernel = (model.config.channels, model.config.patch, model.config.patch)
        return self.keys.replace("kernel={}", f"kernel={','.join(map(str, kernel))}")

    def bare(self, config: ModelConfig) -> bool:
        return isinstance(config, ViTConfig) and isinstance(config.head, NoHeadConfig)


def _head(given: Settings) -> HeadConfig:
    """The head by the first of `architectures`."""
    names = given.get("architectures", [])
    name = names[0] if names else "ViTModel"
    if name == "ViTModel":
        return NoHeadConfig()
    if name != "ViTForImageClassification":
        raise UserError(
            f"config.json: the architecture {name} cannot be imported; known are ViTModel and ViTForImageClassification"
        )
    return ClassesHeadConfig(*read_labels(given), pool="cls")
