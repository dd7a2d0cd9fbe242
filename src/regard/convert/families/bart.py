"""BART (norms after each layer) and mBART (norms before): learned positions and a norm after the embeddings."""

from regard.convert.family import Family, JsonObject, Settings
from regard.errors import UserError
from regard.models import TransformerConfig
from regard.models.base import ModelConfig
from regard.nn.blocks.block import PostNormConfig, PreNormConfig
from regard.nn.feedforward import FeedForwardConfig, GELUConfig, GELUTanhConfig, ReLUConfig, SiLUConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig

ACTIVATIONS: dict[str, type[FeedForwardConfig]] = {
    "gelu": GELUConfig,
    "gelu_new": GELUTanhConfig,
    "relu": ReLUConfig,
    "silu": SiLUConfig,
    "swish": SiLUConfig,
}
EPS = 1e-5  # of every norm

#: The layers of one stack, as Marian and Whisper have them too.
LAYERS = """
    STACK.*.norm_attention.gain      model.STACK.layers.*.self_attn_layer_norm.weight
    STACK.*.norm_attention.bias      model.STACK.layers.*.self_attn_layer_norm.bias
    STACK.*.attention.qkv.weight     model.STACK.layers.*.self_attn.{q,k,v}_proj.weight
    STACK.*.attention.qkv.bias       model.STACK.layers.*.self_attn.{q,k,v}_proj.bias
    STACK.*.attention.out.weight     model.STACK.layers.*.self_attn.out_proj.weight
    STACK.*.attention.out.bias       model.STACK.layers.*.self_attn.out_proj.bias
    STACK.*.norm_cross.gain          model.STACK.layers.*.encoder_attn_layer_norm.weight
    STACK.*.norm_cross.bias          model.STACK.layers.*.encoder_attn_layer_norm.bias
    STACK.*.cross.q.weight           model.STACK.layers.*.encoder_attn.q_proj.weight
    STACK.*.cross.q.bias             model.STACK.layers.*.encoder_attn.q_proj.bias
    STACK.*.cross.kv.weight          model.STACK.layers.*.encoder_attn.{k,v}_proj.weight
    STACK.*.cross.kv.bias            model.STACK.layers.*.encoder_attn.{k,v}_proj.bias
    STACK.*.cross.out.weight         model.STACK.layers.*.encoder_attn.out_proj.weight
    STACK.*.cross.out.bias           model.STACK.layers.*.encoder_attn.out_proj.bias
    STACK.*.norm_feedforward.gain    model.STACK.layers.*.final_layer_norm.weight
    STACK.*.norm_feedforward.bias    model.STACK.layers.*.final_layer_norm.bias
    STACK.*.feedforward.up.weight    model.STACK.layers.*.fc1.weight
    STACK.*.feedforward.up.bias      model.STACK.layers.*.fc1.bias
    STACK.*.feedforward.down.weight  model.STACK.layers.*.fc2.weight
    STACK.*.feedforward.down.bias    model.STACK.layers.*.fc2.bias
"""
STACKS = LAYERS.replace("STACK", "encoder") + LAYERS.replace("STACK", "decoder")


class Bart(Family):
    """Encoder-decoders with learned positions and biases."""

    kinds = ("bart", "mbart")
    prefix = "model."
    unused = r"model\.decoder\.embed_tokens\.weight|model\.(encoder|decoder)\.version"
    keys = (
        STACKS
        + """
        embed.weight                     model.shared.weight
        embed_source.weight              model.encoder.embed_tokens.weight
        unembed.weight                   lm_head.weight
        unembed.bias                     final_logits_bias    row zero
        position_source.table.weight     model.encoder.embed_positions.weight
        position.table.weight            model.decoder.embed_positions.weight
        norm_embed_source.gain           model.encoder.layernorm_embedding.weight
        norm_embed_source.bias           model.encoder.layernorm_embedding.bias
        norm_embed.gain                  model.decoder.layernorm_embedding.weight
        norm_embed.bias                  model.decoder.layernorm_embedding.bias
        norm_source.gain                 model.encoder.layer_norm.weight
        norm_source.bias                 model.encoder.layer_norm.bias
        norm.gain                        model.decoder.layer_norm.weight
        norm.bias                        model.decoder.layer_norm.bias
    """
    )

    def config(self, kind: str, given: Settings) -> TransformerConfig:
        before = kind == "mbart"
        given.require("normalize_before", before)
        given.require("add_final_layer_norm", before)
        given.require("normalize_embedding", True)
        given.require("static_position_embeddings", False)
        given.require("tie_word_embeddings", True)
        given.ignore("add_bias_logits", "extra_pos_embeddings")
        return TransformerConfig(
            **read_stacks(given),
            vocabulary=given.size("vocab_size", 50_265),
            context=given.size("max_position_embeddings", 1024),
            embedding_norm=True,
            head_bias=True,
            position=LearnedPositionConfig(offset=2),
            block=PreNormConfig() if before else PostNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        fields = write_stacks(config)
        if fields is None or not isinstance(config, TransformerConfig):
            return None
        return fields | {
            "architectures": [f"{'MBart' if kind == 'mbart' else 'Bart'}ForConditionalGeneration"],
            "vocab_size": config.vocabulary,
            "max_position_embeddings": config.context,
        }

    def tied(self, config: ModelConfig) -> dict[str, str]:
        return {"unembed.weight": "embed.weight", "embed_source.weight": "embed.weight"}


def read_stacks(given: Settings) -> JsonObject:
    """The options of `TransformerConfig` that this file, Marian and Whisper have in common."""
    for name, usual in (("ffn_dim", 4096), ("attention_heads", 16)):
        encoder, decoder = (given.size(f"{side}_{name}", usual) for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise UserError(
                f"config.json: encoder_{name} is {encoder} and decoder_{name} {decoder}; only models with the same on "
                "both sides can be imported"
            )
    given.require("activation_function", *ACTIVATIONS)
    given.ignore("num_hidden_layers", "init_std", "classif_dropout", "classifier_dropout", "output_past", "is_decoder")
    given.ignore("encoder_layerdrop", "decoder_layerdrop")
    width, layers = given.size("d_model", 1024), given.size("encoder_layers", 12)
    activation = ACTIVATIONS[given.get("activation_function", "gelu")]
    return {
        "layers": layers,
        "decoder_layers": given.size("decoder_layers", 12),
        "heads": given.size("encoder_attention_heads", 16),
        "width": width,
        "dropout": float(given.get("dropout", 0.1)),
        "attention_dropout": float(given.get("attention_dropout", 0.0)),
        "scaled": given.get("scale_embedding", False),
        "bias": True,
        "norm": LayerNormConfig(eps=EPS),
        "feedforward": activation(
            ratio=given.size("encoder_ffn_dim", 4096) / width, dropout=float(given.get("activation_dropout", 0.0))
        ),
    }


def write_stacks(config: ModelConfig) -> JsonObject | None:
    """The fields of `config.json` that `read_stacks` reads; None if there are none for a part."""
    if not isinstance(config, TransformerConfig):
        return None
    names = {value: name for name, value in reversed(ACTIVATIONS.items())}
    activation, hidden = names.get(type(config.feedforward)), round(config.feedforward.ratio * config.width)
    if activation is None:
        return None
    return {
        "is_encoder_decoder": True,
        "encoder_layers": config.layers,
        "decoder_layers": config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "d_model": config.width,
        "activation_function": activation,
        "dropout": config.dropout,
        "attention_dropout": config.dropout if config.attention_dropout is None else config.attention_dropout,
        "activation_dropout": config.feedforward.dropout,
        "scale_embedding": config.scaled,
    }
