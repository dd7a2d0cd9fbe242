"""Small configurations of the model types of `transformers`: every size that a configuration names, reduced.

Sizes are given to the constructor, since many configurations derive others from them. Models whose sizes must
agree in ways of their own are tried with fewer changes, at last with only fewer layers and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 32, 4, 2, 96, 64
#: By the name of an entry; an entry that the configuration does not have, or that is not a number there, is left out.
SIZES: dict[str, float] = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "src_vocab_size", "tgt_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "hidden_dim"), WIDTH),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "input_embedding_size", "output_embedding_size"), WIDTH),
    **dict.fromkeys(("lm_head_dim", "attention_hidden_size", "embedding_dim", "d_embed", "rnn_hidden_size"), WIDTH),
    **dict.fromkeys(("audio_hidden_size", "hidden_size_global"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "linear_num_value_heads", "linear_num_key_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_query_groups"), 2),
    **dict.fromkeys(
        ("head_dim", "d_kv", "kv_channels", "attention_head_dim", "v_head_dim", "linear_value_head_dim"), 8
    ),
    **dict.fromkeys(("linear_key_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "time_step_rank", "index_n_heads"), 8),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"), LAYERS),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "d_inner"), 64),
    **dict.fromkeys(("shared_intermediate_size", "intermediate_dim", "feed_forward_size", "mlp_dim"), 64),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_source_positions"), CONTEXT
    ),
    **dict.fromkeys(("max_target_positions", "original_max_position_embeddings", "max_sequence_length"), CONTEXT),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(
        ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "moe_num_shared_experts"), 1
    ),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "conv_dim"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "ssm_n_groups"), 1),
    **dict.fromkeys(("rotary_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("vocab_size_per_layer_input",), VOCABULARY),
    **dict.fromkeys(("sliding_window", "local_attention", "window_size", "attention_window_size"), 16),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("patch_size", "d_latents", "num_latents"), 8),
    **dict.fromkeys(("num_codebooks",), 1),
    **dict.fromkeys(("num_filters",), 4),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("encoder_hash_byte_group_vocab",), VOCABULARY),
    **dict.fromkeys(("width_coefficient", "depth_coefficient"), 0.3),
    **dict.fromkeys(("pad_token_id",), 1),
    **dict.fromkeys(("bos_token_id", "cls_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    **dict.fromkeys(("blank_token_id",), 3),
}
SPECIALS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads")
KEPT = ("is_decoder", "add_cross_attention")  # of the configurations inside a configuration
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEAD_WIDTHS = ("head_dim", "d_kv", "kv_channels", "attention_head_dim")
#: The attempts: sizes that differ in each; None leaves an entry at its default.
ATTEMPTS: tuple[dict[str, float | None], ...] = (
    {},
    dict.fromkeys(KV_HEADS, HEADS),  # multi-head latent attention has no fewer key heads
    dict.fromkeys(LAYER_COUNTS, 4),  # hybrids whose every fourth layer has attention
    dict.fromkeys(LAYER_COUNTS, 8),
    dict.fromkeys((*KV_HEADS, *LAYER_COUNTS), 4),
    {"num_heads": 8},  # Mamba 2: heads x head width = twice the width
    dict.fromkeys(HEAD_WIDTHS),
    dict.fromkeys(set(SIZES) - {"vocab_size", "decoder_layers", *LAYER_COUNTS}),
)


LINEAR = ["linear_attention", "full_attention"]
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
SLIDING = ["sliding_attention", "full_attention"]
ZAMBA = {"attention_hidden_size": 64, "attention_head_dim": 16}  # attention on twice the width
#: Entries by model type that its sizes do not determine.
ENTRIES: dict[str, dict[str, Any]] = {
    **{kind: {"layer_types": LINEAR} for kind in ("granitemoehybrid", "kimi_linear")},
    "bailing_hybrid": {"layer_types": LINEAR, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "blt": {"num_hidden_layers": 2},
    "efficientnet": {"hidden_dim": 384},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, **ZAMBA},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "mamba_ngroups": 1, **ZAMBA},
    **{kind: {"head_dim": 8} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    "bamba": {"attn_layer_indices": [1]},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"],
        **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16},
        **{"indexer_compress_ratio": 4, "hc_lowrank": 8},
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma3n_text": {"layer_types": SLIDING, "num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "cohere_compass_text": {"layer_types": SLIDING, "rope_parameters": dict.fromkeys(SLIDING, ROTARY)},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},  # widths are rounded up to 64
    "nemotron": {"num_key_value_heads": 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 8},
    "xmod": {"default_language": "en_XX"},
    "esm": {"vocab_size": VOCABULARY, **SPECIALS, "mask_token_id": 3},
}


def small_settings(config: Any, attempt: dict[str, float | None]) -> dict[str, Any]:
    """The reduced entries of a configuration and of the configurations inside it."""
    sizes = {**SIZES, **attempt}
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            kept = {key: vars(value)[key] for key in KEPT if vars(value).get(key)}
            found[name] = {"model_type": value.model_type} | kept | small_settings(value, attempt)
        elif isinstance(value, int | float) and not isinstance(value, bool) and (size := sizes.get(name)) is not None:
            found[name] = size if name.endswith("_token_id") or not value else min(size, value)
    return found | (SPECIALS if "vocab_size" in found else {}) | ENTRIES.get(config.model_type, {})


def small_configs(kind: type) -> Iterator[Callable[[], Any]]:
    """Functions that make a configuration to try, the smallest first."""
    default = kind()
    for attempt in ATTEMPTS:
        yield lambda attempt=attempt: kind(**small_settings(default, attempt))
