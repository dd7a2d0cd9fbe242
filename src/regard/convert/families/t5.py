"""T5 and T5 1.1: no scale of the scores, no biases, RMSNorm, and distances in buckets, one table for each stack."""

from regard.attention import SoftmaxConfig
from regard.convert.family import Family, JsonObject, Settings
from regard.models import TransformerConfig
from regard.models.base import ModelConfig
from regard.nn.attention import SeparateConfig
from regard.nn.blocks.block import PreNormConfig
from regard.nn.feedforward import (
    FeedForwardConfig,
    GatedConfig,
    GEGLUTanhConfig,
    GELUConfig,
    GELUTanhConfig,
    ReGLUConfig,
    ReLUConfig,
    SiLUConfig,
    SwiGLUConfig,
    hidden_width,
)
from regard.nn.norm import RMSNormConfig
from regard.nn.positions.position import T5Config

#: `gated-gelu` is the tanh approximation, `gelu` is not.
ACTIVATIONS: dict[str, type[FeedForwardConfig]] = {
    "relu": ReLUConfig,
    "gelu": GELUConfig,
    "gelu_new": GELUTanhConfig,
    "silu": SiLUConfig,
    "gated-relu": ReGLUConfig,
    "gated-gelu": GEGLUTanhConfig,
    "gated-gelu_new": GEGLUTanhConfig,
    "gated-silu": SwiGLUConfig,
}


class T5(Family):
    """Encoder-decoders with RMSNorm before each layer and a bias on the scores by the distance of the tokens."""

    kinds = ("t5", "mt5")
    unused = r"decoder\.embed_tokens\.weight|decoder\..*\.EncDecAttention\.relative_attention_bias\.weight"
    keys = """
        embed.weight                         shared.weight
        embed_source.weight                  encoder.embed_tokens.weight
        position_source.shared.table encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight transposed
        position.shared.table decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight transposed
        encoder.*.norm_attention.gain        encoder.block.*.layer.0.layer_norm.weight
        encoder.*.attention.qkv.weight       encoder.block.*.layer.0.SelfAttention.{q,k,v}.weight
        encoder.*.attention.out.weight       encoder.block.*.layer.0.SelfAttention.o.weight
        encoder.*.norm_feedforward.gain      encoder.block.*.layer.1.layer_norm.weight
        encoder.*.feedforward.up.weight      encoder.block.*.layer.1.DenseReluDense.wi.weight
        encoder.*.feedforward.gate_up.weight encoder.block.*.layer.1.DenseReluDense.{wi_0,wi_1}.weight
        encoder.*.feedforward.down.weight    encoder.block.*.layer.1.DenseReluDense.wo.weight
        norm_source.gain                     encoder.final_layer_norm.weight
        decoder.*.norm_attention.gain        decoder.block.*.layer.0.layer_norm.weight
        decoder.*.attention.qkv.weight       decoder.block.*.layer.0.SelfAttention.{q,k,v}.weight
        decoder.*.attention.out.weight       decoder.block.*.layer.0.SelfAttention.o.weight
        decoder.*.norm_cross.gain            decoder.block.*.layer.1.layer_norm.weight
        decoder.*.cross.q.weight             decoder.block.*.layer.1.EncDecAttention.q.weight
        decoder.*.cross.kv.weight            decoder.block.*.layer.1.EncDecAttention.{k,v}.weight
        decoder.*.cross.out.weight           decoder.block.*.layer.1.EncDecAttention.o.weight
        decoder.*.norm_feedforward.gain      decoder.block.*.layer.2.layer_norm.weight
        decoder.*.feedforward.up.weight      decoder.block.*.layer.2.DenseReluDense.wi.weight
        decoder.*.feedforward.gate_up.weight decoder.block.*.layer.2.DenseReluDense.{wi_0,wi_1}.weight
        decoder.*.feedforward.down.weight    decoder.block.*.layer.2.DenseReluDense.wo.weight
        norm.gain                            decoder.final_layer_norm.weight
        unembed.weight                       lm_head.weight
    """

    def config(self, kind: str, given: Settings) -> TransformerConfig:
        width, heads = given.size("d_model"), given.size("num_heads")
        layers, size = given.size("num_layers"), given.size("d_kv")
        activation = given.get("feed_forward_proj", "relu" if kind == "t5" else "gated-gelu")
        given.require("feed_forward_proj", *ACTIVATIONS)
        given.ignore("classifier_dropout", "dense_act_fn", "is_gated_act", "output_past", "is_decoder")
        # Models with an output head of their own, as those of T5 1.1, do not scale what it reads.
        scaled = given.get("scale_decoder_outputs", given.get("tie_word_embeddings", True)) and kind == "t5"
        dropout = float(given.get("dropout_rate", 0.1))
        return TransformerConfig(
            vocabulary=given.size("vocab_size", 32_128),
            context=given.size("n_positions", 512),
            layers=layers,
            decoder_layers=given.get("num_decoder_layers", layers),
            heads=heads,
            width=width,
            dropout=dropout,
            tied=scaled,
            joint=True,
            scaled=False,
            scaled_head=scaled,
            projection=SeparateConfig(size=None if size * heads == width else size),
            attention=SoftmaxConfig(scale=1.0),
            across=SoftmaxConfig(scale=1.0),
            norm=RMSNormConfig(float(given.get("layer_norm_epsilon", 1e-6))),
            position=T5Config(
                given.size("relative_attention_num_buckets", 32), given.size("relative_attention_max_distance", 128)
            ),
            feedforward=ACTIVATIONS[activation](ratio=given.size("d_ff") / width, dropout=dropout),
            block=PreNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        if not isinstance(config, TransformerConfig) or not isinstance(config.norm, RMSNormConfig):
            return None
        names = {value: name for name, value in reversed(ACTIVATIONS.items())}
        activation, position = names.get(type(config.feedforward)), config.position
        if activation is None or not isinstance(position, T5Config):
            return None
        gated = isinstance(config.feedforward, GatedConfig)
        return {
            "architectures": ["T5ForConditionalGeneration" if kind == "t5" else "MT5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": config.vocabulary,
            "n_positions": config.context,
            "num_layers": config.layers,
            "num_decoder_layers": config.depth,
            "num_heads": config.heads,
            "d_kv": config.projection.head_width(config.width, config.heads),
            "d_model": config.width,
            "d_ff": hidden_width(config.feedforward.ratio, config.width, gated),
            "feed_forward_proj": activation,
            "layer_norm_epsilon": config.norm.eps,
            "relative_attention_num_buckets": position.buckets,
            "relative_attention_max_distance": position.furthest,
            "dropout_rate": config.dropout,
            "tie_word_embeddings": config.tied,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        }

    def tied(self, config: ModelConfig) -> dict[str, str]:
        # The head may be tied where config.json does not say so.
        return {"unembed.weight": "embed.weight", "embed_source.weight": "embed.weight"}
