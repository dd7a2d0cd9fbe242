"""Llama and its relatives: Mistral (a window), Mixtral (experts), Qwen 2 (biases of q, k, v), Qwen 3 (q, k norms)."""

from regard.attention import SoftmaxConfig, WindowConfig
from regard.convert.families.rope import read_rope, write_rope
from regard.convert.family import Family, JsonObject, Settings
from regard.errors import UserError
from regard.models import GPTConfig
from regard.models.base import Model, ModelConfig
from regard.nn.attention import SeparateConfig
from regard.nn.blocks.block import PreNormConfig
from regard.nn.experts.moe import MoEConfig
from regard.nn.feedforward import SwiGLUConfig
from regard.nn.norm import RMSNormConfig
from regard.nn.positions.position import RotaryConfig

BASES = {"mixtral": 1e6}  # of rotary positions, where it is not 10,000
EPSILONS = {"mixtral": 1e-5}


class Llama(Family):
    """Decoders with RMSNorm before each layer, rotary positions and gated feed-forward networks."""

    kinds = ("llama", "mistral", "mixtral", "qwen2", "qwen3")
    unused = r".*\.rotary_emb\.inv_freq"
    keys = """
        embed.weight                           model.embed_tokens.weight
        blocks.*.norm_attention.gain           model.layers.*.input_layernorm.weight
        blocks.*.attention.qkv.weight          model.layers.*.self_attn.{q,k,v}_proj.weight
        blocks.*.attention.qkv.bias            model.layers.*.self_attn.{q,k,v}_proj.bias
        blocks.*.attention.norm_qk.q.gain      model.layers.*.self_attn.q_norm.weight
        blocks.*.attention.norm_qk.k.gain      model.layers.*.self_attn.k_norm.weight
        blocks.*.attention.out.weight          model.layers.*.self_attn.o_proj.weight
        blocks.*.attention.out.bias            model.layers.*.self_attn.o_proj.bias
        blocks.*.norm_feedforward.gain         model.layers.*.post_attention_layernorm.weight
        blocks.*.feedforward.gate_up.weight    model.layers.*.mlp.{gate,up}_proj.weight
        blocks.*.feedforward.gate_up.bias      model.layers.*.mlp.{gate,up}_proj.bias
        blocks.*.feedforward.down.weight       model.layers.*.mlp.down_proj.weight
        blocks.*.feedforward.down.bias         model.layers.*.mlp.down_proj.bias
        norm.gain                              model.norm.weight
        unembed.weight                         lm_head.weight
    """
    experts_keys = """
        blocks.*.feedforward.router.weight     model.layers.*.block_sparse_moe.gate.weight
        blocks.*.feedforward.gate_up.weight    model.layers.*.block_sparse_moe.experts.#.{w1,w3}.weight
        blocks.*.feedforward.down.weight       model.layers.*.block_sparse_moe.experts.#.w2.weight
    """

    def config(self, kind: str, given: Settings) -> GPTConfig:
        given.require("hidden_act", "silu", "swish")
        given.require("pretraining_tp", 1)
        given.ignore("max_window_layers", "output_router_logits", "router_jitter_noise")
        width, heads = given.size("hidden_size"), given.size("num_attention_heads")
        layers, size = given.size("num_hidden_layers"), given.get("head_dim", width // max(heads, 1))
        bias = given.get("attention_bias", False)
        if given.get("mlp_bias", False) != bias:
            raise UserError(
                "config.json: attention_bias and mlp_bias differ; only models with both or none can be imported"
            )
        eps = float(given.get("rms_norm_eps", EPSILONS.get(kind, 1e-6)))
        sliding = _window(kind, given, layers)
        hidden, experts = given.size("intermediate_size"), given.get("num_local_experts", 8 if kind == "mixtral" else 0)
        feedforward = SwiGLUConfig(ratio=hidden / width)
        if kind == "mixtral":
            active = given.size("num_experts_per_tok", 2)
            balance = float(given.get("router_aux_loss_coef", 0.001))
            feedforward = MoEConfig(
                ratio=hidden / width, experts=experts, active=active, normalise=True, balance=balance
            )
        return GPTConfig(
            vocabulary=given.size("vocab_size"),
            context=given.size("max_position_embeddings", 2048),
            layers=layers,
            heads=heads,
            kv_heads=given.get("num_key_value_heads", heads),
            width=width,
            attention_dropout=float(given.get("attention_dropout", 0.0)),
            tied=given.get("tie_word_embeddings", False),
            bias=bias,
            qk_norm=kind == "qwen3",
            projection=SeparateConfig(
                size=None if size == width // heads else size,
                bias=True if kind == "qwen2" else None,
                norms="separate" if kind == "qwen3" else "shared",
                eps=eps if kind == "qwen3" else 1e-6,
            ),
            attention=SoftmaxConfig() if sliding is None else WindowConfig(sliding),
            norm=RMSNormConfig(eps),
            position=read_rope(given, BASES.get(kind, 10_000.0)),
            feedforward=feedforward,
            block=PreNormConfig(),
        )

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        if not isinstance(config, GPTConfig) or not isinstance(config.norm, RMSNormConfig):
            return None
        rope = write_rope(config.position) if isinstance(config.position, RotaryConfig) else None
        if rope is None:
            return None
        fields: JsonObject = {
            "architectures": [f"{kind.capitalize()}ForCausalLM"],
            "vocab_size": config.vocabulary,
            "max_position_embeddings": config.context,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.key_heads,
            "head_dim": config.projection.head_width(config.width, config.heads),
            "hidden_size": config.width,
            "intermediate_size": config.feedforward.hidden(config.width),
            "hidden_act": "silu",
            "attention_dropout": config.attention_dropout or 0.0,
            "tie_word_embeddings": config.tied,
            "rms_norm_eps": config.norm.eps,
            **rope,
        }
        if kind in ("llama", "qwen3"):
            fields |= {"attention_bias": config.bias, **({"mlp_bias": config.bias} if kind == "llama" else {})}
        if kind in ("mistral", "mixtral"):
            fields["sliding_window"] = config.attention.size if isinstance(config.attention, WindowConfig) else None
        if kind == "mixtral" and isinstance(moe := config.feedforward, MoEConfig):
            fields |= {"num_local_experts": moe.experts, "num_experts_per_tok": moe.active}
            fields |= {"router_aux_loss_coef": moe.balance}
        return fields

    def table(self, model: Model) -> str:
        routed = isinstance(model.config.feedforward, MoEConfig)  # type: ignore[attr-defined] (a GPT)
        return self.keys + self.experts_keys if routed else self.keys

    def experts(self, config: ModelConfig) -> int:
        routed = config.feedforward  # type: ignore[attr-defined] (a GPT)
        return routed.experts if isinstance(routed, MoEConfig) else 0


def _window(kind: str, given: Settings, layers: int) -> int | None:
    """The window of all layers; None: no window. Layers with different windows are refused."""
    size, used = given.get("sliding_window", 4096 if kind == "mistral" else 0), given.get("use_sliding_window", False)
    types = given.get("layer_types", [])
    if kind.startswith("qwen") and not used:
        size = 0
    elif types and len(set(types)) > 1:
        raise UserError("config.json: layers have different windows (layer_types), which cannot be imported")
    return size or None
