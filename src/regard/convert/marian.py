"""Marian's translation models (`MarianMTModel` of `transformers`) as a ``Transformer`` with the same weights.

The library is not imported: a config and a state dict suffice. Marian is the paper's model with another activation and
with sinusoids in halves (all sines, then all cosines), so its positions are loaded as tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.feedforward import FeedForwardConfig, GELUConfig, ReLUConfig, SiLUConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig

ACTIVATIONS: dict[str, type[FeedForwardConfig]] = {
    "swish": SiLUConfig,
    "silu": SiLUConfig,
    "gelu": GELUConfig,
    "relu": ReLUConfig,
}


def from_marian(model: Any) -> Transformer:
    """Our model with the weights of a `MarianMTModel`, in evaluation mode."""
    weights = model.state_dict()
    ours = marian_config(model.config).build()
    ours.load_state_dict(marian_weights(weights, ours))
    return ours.to(weights["model.encoder.layers.0.fc1.weight"].dtype).eval()


def marian_config(config: Any) -> TransformerConfig:
    """Our config of a `MarianConfig`."""
    for size in ("ffn_dim", "attention_heads"):
        encoder, decoder = (getattr(config, f"{side}_{size}") for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise UserError(
                f"this Marian model has encoder_{size} {encoder} and decoder_{size} {decoder}; "
                "only models with the same on both sides can be converted"
            )
    if config.activation_function not in ACTIVATIONS:
        raise UserError(
            f"this Marian model uses the activation {config.activation_function!r}; "
            f"those that can be converted are {', '.join(ACTIVATIONS)}"
        )
    joint = config.share_encoder_decoder_embeddings
    feedforward = ACTIVATIONS[config.activation_function](ratio=config.encoder_ffn_dim / config.d_model)
    return TransformerConfig(
        vocabulary=config.vocab_size if joint else config.decoder_vocab_size,
        source_vocabulary=None if joint else config.vocab_size,
        context=config.max_position_embeddings,
        layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.encoder_attention_heads,
        width=config.d_model,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        tied=config.tie_word_embeddings,
        scaled=config.scale_embedding,
        bias=True,
        head_bias=True,
        norm=LayerNormConfig(),
        position=LearnedPositionConfig(),
        feedforward=feedforward,
        block=PostNormConfig(),
    )


def marian_weights(weights: Mapping[str, Tensor], model: Transformer) -> dict[str, Tensor]:
    """A `MarianMTModel`'s weights under the names of ``model``."""
    ours = {
        "embed_source.weight": weights["model.encoder.embed_tokens.weight"],
        "embed.weight": weights["model.decoder.embed_tokens.weight"],
        "unembed.weight": weights["lm_head.weight"],
        "unembed.bias": weights["final_logits_bias"].flatten(),
        "position_source.table.weight": weights["model.encoder.embed_positions.weight"],
        "position.table.weight": weights["model.decoder.embed_positions.weight"],
    }
    for side, blocks in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i in range(len(blocks)):
            theirs = f"model.{side}.layers.{i}."
            found = _block({name.removeprefix(theirs): w for name, w in weights.items() if name.startswith(theirs)})
            ours |= {f"{side}.{i}.{name}": weight for name, weight in found.items()}
    return ours


def _block(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One layer's weights: projections that we keep as one matrix are stacked."""

    def joined(attention: str, parts: Sequence[str], what: str) -> Tensor:
        return torch.cat([weights[f"{attention}.{part}_proj.{what}"] for part in parts])

    found: dict[str, Tensor] = {}
    for what in ("weight", "bias"):
        found[f"attention.qkv.{what}"] = joined("self_attn", "qkv", what)
        found[f"attention.out.{what}"] = joined("self_attn", ("out",), what)
        found[f"feedforward.up.{what}"] = weights[f"fc1.{what}"]
        found[f"feedforward.down.{what}"] = weights[f"fc2.{what}"]
        norms = {"norm_attention": "self_attn_layer_norm", "norm_feedforward": "final_layer_norm"}
        if f"encoder_attn.q_proj.{what}" in weights:
            norms["norm_cross"] = "encoder_attn_layer_norm"
            found[f"cross.q.{what}"] = joined("encoder_attn", "q", what)
            found[f"cross.kv.{what}"] = joined("encoder_attn", "kv", what)
            found[f"cross.out.{what}"] = joined("encoder_attn", ("out",), what)
        for mine, theirs in norms.items():
            found[f"{mine}.{'gain' if what == 'weight' else what}"] = weights[f"{theirs}.{what}"]
    return found
