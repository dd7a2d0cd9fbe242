"""Marian's translation models: the Transformer of the paper with sinusoids in halves (all sines, then all cosines)."""

from regard.convert.families.bart import STACKS, read_stacks, write_stacks
from regard.convert.family import Family, JsonObject, Settings
from regard.errors import UserError
from regard.models import TransformerConfig
from regard.models.base import Model, ModelConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.positions.position import SinusoidalConfig


class Marian(Family):
    """Encoder-decoders with norms after each layer; one vocabulary or two."""

    kinds = ("marian",)
    prefix = "model."
    unused = r"model\.decoder\.embed_tokens\.weight|model\.(encoder|decoder)\.embed_positions\.weight"
    keys = (
        STACKS
        + """
        embed_source.weight  model.encoder.embed_tokens.weight
        embed.weight         model.shared.weight
        unembed.weight       lm_head.weight
        unembed.bias         final_logits_bias    row zero
    """
    )

    def config(self, kind: str, given: Settings) -> TransformerConfig:
        given.require("static_position_embeddings", True)
        given.require("normalize_before", False)
        given.require("normalize_embedding", False)
        given.require("add_final_layer_norm", False)
        given.ignore("add_bias_logits", "extra_pos_embeddings")
        size, shared = given.size("vocab_size", 58_101), given.get("share_encoder_decoder_embeddings", True)
        target, tied = given.size("decoder_vocab_size", size), given.get("tie_word_embeddings", True)
        if shared and (target != size or not tied):
            raise UserError("config.json: models that share the embedding of source and target share it with the head")
        return TransformerConfig(
            **read_stacks(given),
            vocabulary=target,
            source_vocabulary=None if shared else size,
            context=given.size("max_position_embeddings", 1024),
            tied=tied,
            head_bias=True,
            position=SinusoidalConfig(order="halves"),
            block=PostNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        fields = write_stacks(config)
        if fields is None or not isinstance(config, TransformerConfig):
            return None
        source = config.source_vocabulary
        return fields | {
            "architectures": ["MarianMTModel"],
            "vocab_size": source or config.vocabulary,
            "decoder_vocab_size": config.vocabulary,
            "share_encoder_decoder_embeddings": source is None,
            "tie_word_embeddings": config.tied,
            "max_position_embeddings": config.context,
            "pad_token_id": config.vocabulary - 1,
            "eos_token_id": 0,
            "decoder_start_token_id": config.vocabulary - 1,
        }

    def table(self, model: Model) -> str:
        joint = _is_joint(model.config)
        return self.keys if joint else self.keys.replace("model.shared", "model.decoder.embed_tokens")

    def tied(self, config: ModelConfig) -> dict[str, str]:
        joint = _is_joint(config)
        return {"unembed.weight": "embed.weight"} | ({"embed_source.weight": "embed.weight"} if joint else {})


def _is_joint(config: ModelConfig) -> bool:
    return isinstance(config, TransformerConfig) and config.shares_embedding
