"""GPT-2. Its matrices are stored transposed, and queries, keys and values are one of them already."""

from regard.convert.family import Family, JsonObject, Settings
from regard.models import GPTConfig
from regard.models.base import ModelConfig
from regard.nn.blocks.block import PreNormConfig
from regard.nn.feedforward import GELUConfig, GELUTanhConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig

ACTIVATIONS = {"gelu_new": GELUTanhConfig, "gelu_pytorch_tanh": GELUTanhConfig, "gelu": GELUConfig}


class GPT2(Family):
    """Decoders with LayerNorm before each layer, learned positions and biases."""

    kinds = ("gpt2",)
    unused = r".*\.attn\.(bias|masked_bias)"
    keys = """
        embed.weight                     transformer.wte.weight
        position.table.weight            transformer.wpe.weight
        blocks.*.norm_attention.gain     transformer.h.*.ln_1.weight
        blocks.*.norm_attention.bias     transformer.h.*.ln_1.bias
        blocks.*.attention.qkv.weight    transformer.h.*.attn.c_attn.weight    transposed
        blocks.*.attention.qkv.bias      transformer.h.*.attn.c_attn.bias
        blocks.*.attention.out.weight    transformer.h.*.attn.c_proj.weight    transposed
        blocks.*.attention.out.bias      transformer.h.*.attn.c_proj.bias
        blocks.*.norm_feedforward.gain   transformer.h.*.ln_2.weight
        blocks.*.norm_feedforward.bias   transformer.h.*.ln_2.bias
        blocks.*.feedforward.up.weight   transformer.h.*.mlp.c_fc.weight       transposed
        blocks.*.feedforward.up.bias     transformer.h.*.mlp.c_fc.bias
        blocks.*.feedforward.down.weight transformer.h.*.mlp.c_proj.weight     transposed
        blocks.*.feedforward.down.bias   transformer.h.*.mlp.c_proj.bias
        norm.gain                        transformer.ln_f.weight
        norm.bias                        transformer.ln_f.bias
        unembed.weight                   lm_head.weight
    """

    def config(self, kind: str, given: Settings) -> GPTConfig:
        width, activation = given.size("n_embd", 768), given.get("activation_function", "gelu_new")
        given.require("activation_function", *ACTIVATIONS)
        given.require("scale_attn_weights", True)
        given.require("scale_attn_by_inverse_layer_idx", False)
        given.require("add_cross_attention", False)
        given.ignore(
            "n_ctx", "reorder_and_upcast_attn", *(f"summary_{n}" for n in ("type", "use_proj", "proj_to_labels"))
        )
        given.ignore("summary_activation", "summary_first_dropout", "embd_pdrop")
        return GPTConfig(
            vocabulary=given.size("vocab_size", 50_257),
            context=given.size("n_positions", 1024),
            layers=given.size("n_layer", 12),
            heads=given.size("n_head", 12),
            width=width,
            dropout=float(given.get("resid_pdrop", 0.1)),
            attention_dropout=float(given.get("attn_pdrop", 0.1)),
            tied=given.get("tie_word_embeddings", True),
            bias=True,
            qk_norm=False,
            zero_init=False,
            norm=LayerNormConfig(eps=float(given.get("layer_norm_epsilon", 1e-5))),
            position=LearnedPositionConfig(),
            feedforward=ACTIVATIONS[activation](ratio=given.get("n_inner", 4 * width) / width),
            block=PreNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        if not isinstance(config, GPTConfig) or not isinstance(config.norm, LayerNormConfig):
            return None
        return {
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": config.vocabulary,
            "n_positions": config.context,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_embd": config.width,
            "n_inner": round(config.feedforward.ratio * config.width),
            "activation_function": "gelu" if isinstance(config.feedforward, GELUConfig) else "gelu_new",
            "layer_norm_epsilon": config.norm.eps,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.dropout if config.attention_dropout is None else config.attention_dropout,
            "tie_word_embeddings": config.tied,
        }
