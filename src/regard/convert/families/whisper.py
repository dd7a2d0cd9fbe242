"""Whisper: an encoder of mel spectrograms and a decoder of text. Its keys have no bias: ours is zero."""

from regard.convert.families.bart import STACKS, read_stacks, write_stacks
from regard.convert.family import Family, JsonObject, Settings
from regard.models import TransformerConfig
from regard.models.base import ModelConfig
from regard.nn.blocks.block import PreNormConfig
from regard.nn.positions.position import LearnedPositionConfig
from regard.nn.source import AudioSourceConfig


class Whisper(Family):
    """Encoder-decoders of speech. The encoder's positions are sinusoids, stored as a table."""

    kinds = ("whisper",)
    prefix = "model."
    keys = (
        STACKS.replace("{q,k,v}_proj.bias", "{q,-,v}_proj.bias").replace("{k,v}_proj.bias", "{-,v}_proj.bias")
        + """
        embed_source.conv1.weight      model.encoder.conv1.weight
        embed_source.conv1.bias        model.encoder.conv1.bias
        embed_source.conv2.weight      model.encoder.conv2.weight
        embed_source.conv2.bias        model.encoder.conv2.bias
        position_source.table.weight   model.encoder.embed_positions.weight
        norm_source.gain               model.encoder.layer_norm.weight
        norm_source.bias               model.encoder.layer_norm.bias
        embed.weight                   model.decoder.embed_tokens.weight
        position.table.weight          model.decoder.embed_positions.weight
        norm.gain                      model.decoder.layer_norm.weight
        norm.bias                      model.decoder.layer_norm.bias
        unembed.weight                 proj_out.weight
    """
    )

    def config(self, kind: str, given: Settings) -> TransformerConfig:
        given.require("scale_embedding", False)
        given.ignore("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks")
        given.ignore("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "median_filter_width")
        given.ignore("use_weighted_layer_sum", "classifier_proj_size")
        return TransformerConfig(
            **read_stacks(given),
            vocabulary=given.size("vocab_size", 51_865),
            context=given.size("max_target_positions", 448),
            source_context=given.size("max_source_positions", 1500),
            source=AudioSourceConfig(given.size("num_mel_bins", 80)),
            tied=given.get("tie_word_embeddings", True),
            position=LearnedPositionConfig(),
            block=PreNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        fields = write_stacks(config)
        if fields is None or not isinstance(config, TransformerConfig):
            return None
        if not isinstance(config.source, AudioSourceConfig):
            return None
        last = config.vocabulary - 1
        end = min(50_257 if last >= 51_864 else 50_256, last)  # of the models for many languages, and for English
        return fields | {
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": config.vocabulary,
            "max_target_positions": config.context,
            "max_source_positions": config.source_context or config.context,
            "num_mel_bins": config.source.mels,
            "tie_word_embeddings": config.tied,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
            "decoder_start_token_id": min(end + 1, last),
        }

    def tied(self, config: ModelConfig) -> dict[str, str]:
        return {"unembed.weight": "embed.weight"}
