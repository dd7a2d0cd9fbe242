"""Models in GGUF files: their metadata as a `config.json`, their tensors under the hub's names, and the tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from regard.convert.family import JsonObject, Settings, families, family_of
from regard.convert.gguf import GGUF, write_gguf
from regard.convert.keys import entries, exported
from regard.convert.lazy import LazyTensors
from regard.convert.weights import Imported, chat_format, convert
from regard.errors import UserError
from regard.models.base import Model, ModelConfig

#: The architectures, and whether their file has the rows of queries and keys in pairs of neighbors, as ggml rotates.
ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
NAMES = """
    token_embd              model.embed_tokens
    blk.*.attn_norm         model.layers.*.input_layernorm
    blk.*.attn_q            model.layers.*.self_attn.q_proj
    blk.*.attn_k            model.layers.*.self_attn.k_proj
    blk.*.attn_v            model.layers.*.self_attn.v_proj
    blk.*.attn_q_norm       model.layers.*.self_attn.q_norm
    blk.*.attn_k_norm       model.layers.*.self_attn.k_norm
    blk.*.attn_output       model.layers.*.self_attn.o_proj
    blk.*.ffn_norm          model.layers.*.post_attention_layernorm
    blk.*.ffn_gate          model.layers.*.mlp.gate_proj
    blk.*.ffn_up            model.layers.*.mlp.up_proj
    blk.*.ffn_down          model.layers.*.mlp.down_proj
    output_norm             model.norm
    output                  lm_head
"""
THEIRS = {words[0]: words[1] for words in map(str.split, NAMES.strip().splitlines())}
OURS = {theirs: ours for ours, theirs in THEIRS.items()}
FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
CONTROL = 3  # the type of tokens that stand for no text


class HubNames(LazyTensors):
    """The tensors of a GGUF file under the hub's names."""

    def __init__(self, file: GGUF, heads: Mapping[str, int]):
        self._file, self._heads = file, heads  # query and key heads by the end of a tensor's name
        self._places: dict[str, str] = {self._renamed(name): name for name in file}

    @staticmethod
    def _renamed(name: str) -> str:
        stem, _, what = name.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", name)
        general = stem if layer is None else f"blk.*.{stem[layer.end() :]}"
        theirs = THEIRS.get(general)
        return name if theirs is None else f"{theirs.replace('*', layer[1] if layer else '')}.{what}"

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._file[self._places[name]]
        heads = next((count for end, count in self._heads.items() if f".{end}." in name), None)
        return tensor if heads is None else _halves(tensor, heads)


def _halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from neighboring pairs to halves: row 2i to i, row 2i + 1 to i + D/2."""
    if tensor.shape[0] % (2 * heads):
        raise UserError(f"{tensor.shape[0]} rows of queries or keys are not {heads} heads of an even width")
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def settings(file: GGUF) -> JsonObject:
    """The fields of `config.json` that the metadata gives."""
    kind = file.metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{file.path}: the architecture {kind!r} cannot be imported; those that can are {known}")
    found: JsonObject = {"model_type": kind, "tie_word_embeddings": "output.weight" not in file}
    for name, value in file.metadata.items():
        section, _, field = name.partition(".")
        if section != kind:
            continue
        if field in FIELDS:
            found[FIELDS[field]] = value
        elif field.startswith("rope.scaling") and value not in ("none", 1.0):
            raise UserError(f"{file.path}: {name} is {value!r}; scaled positions of GGUF files cannot be imported")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    found["vocab_size"] = file.metadata.get(f"{kind}.vocab_size", len(tokens) if isinstance(tokens, list) else None)
    return found


def read_gguf(path: Path) -> Imported:
    """The model of a GGUF file."""
    file = GGUF(path)
    fields = settings(file)
    kind = fields["model_type"]
    family, given = families()[kind](), Settings(fields)
    try:
        config = family.config(kind, given)
        config.check()
    except (UserError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{path}: {error}") from error
    pairs = ARCHITECTURES[kind]
    heads = {"q_proj": config.heads, "k_proj": config.key_heads} if pairs else {}  # type: ignore[attr-defined] (a GPT)
    weights, certificate = convert(family, kind, config, HubNames(file, heads))
    certificate.family += f" ({', '.join(f'{count} {name}' for name, count in file.formats().items())})"
    return Imported(config, weights, certificate, tokenizer(file), chat(file))


def chat(file: GGUF) -> JsonObject | None:
    """The chat template of a file and the tokens that it uses; None if there is none."""
    given, tokens = file.metadata, file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return None

    def special(name: str) -> object:
        number = given.get(f"tokenizer.ggml.{name}_token_id")
        return tokens[number] if type(number) is int and 0 <= number < len(tokens) else None

    return chat_format(given.get("tokenizer.chat_template"), special)


def write_gguf_model(
    path: Path, config: ModelConfig, model: Model, tokens: str | None, *, quantize: bool
) -> JsonObject:
    """Write a model and its byte-level BPE as a GGUF file; returns the fields of its `config.json`."""
    family, fields = family_of(config)
    kind = fields["model_type"]
    if kind not in ARCHITECTURES:
        raise UserError(f"a {kind} has no GGUF form here; those that have are {', '.join(ARCHITECTURES)}")
    if fields.get("rope_scaling"):
        raise UserError("a model with scaled positions has no GGUF form here; export it in the hub's layout")
    metadata: JsonObject = {"general.architecture": kind, "general.alignment": 32}
    metadata |= {f"{kind}.{ours}": fields[theirs] for ours, theirs in FIELDS.items() if theirs in fields}
    metadata |= {f"{kind}.vocab_size": fields["vocab_size"], f"{kind}.rope.dimension_count": fields["head_dim"]}
    metadata |= _tokens(tokens) if tokens is not None else {}
    table = entries(family.table(model), model, family.experts(config))
    hub = exported(model, table, model.state_dict(), family.tied(config))
    pairs = {"q_proj": fields["num_attention_heads"], "k_proj": fields["num_key_value_heads"]}
    tensors = {}
    for name, tensor in hub.items():
        heads = next((count for end, count in pairs.items() if f".{end}." in name), None)
        rotated = tensor if heads is None or not ARCHITECTURES[kind] else _neighbors(tensor, heads)
        tensors[_ggml_name(name)] = rotated
    write_gguf(path, metadata, tensors, quantize=quantize)
    return fields


def _ggml_name(name: str) -> str:
    stem, _, what = name.rpartition(".")
    layer = re.search(r"\.(\d+)\.", name)
    general = stem if layer is None else stem.replace(layer[0], ".*.", 1)
    return f"{OURS[general].replace('*', layer[1] if layer else '')}.{what}"


def _neighbors(tensor: Tensor, heads: int) -> Tensor:
    """The inverse of `_halves`."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _tokens(tokenizer: str) -> JsonObject:
    """The metadata of a byte-level BPE; of another kind of tokenizer only its `tokenizer.json`.

    llama.cpp has a fixed list of rules that split text into words. Ours is not among them: GPT-2's is written, which
    differs at an apostrophe that begins a word at the beginning of a line. The whole `tokenizer.json` is exact.
    """
    given = json.loads(tokenizer)
    found: JsonObject = {"tokenizer.huggingface.json": tokenizer}
    model, added = given.get("model", {}), {one["content"]: one["id"] for one in given.get("added_tokens", [])}
    split = given.get("pre_tokenizer") or {}
    name = next((name for name, known in SPLITS.items() if known == split), None)
    words = [one.get("type") for one in split.get("pretokenizers", ())] == ["Split", "ByteLevel"]
    if model.get("type") != "BPE" or not model.get("merges") or (name is None and not words):
        return found | {"tokenizer.ggml.model": "no_vocab"}
    numbered = sorted({**model["vocab"], **added}.items(), key=lambda one: one[1])
    found |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name or "gpt-2"}
    found |= {"tokenizer.ggml.tokens": [word for word, _ in numbered]}
    found |= {"tokenizer.ggml.token_type": [CONTROL if word in added else 1 for word, _ in numbered]}
    found |= {"tokenizer.ggml.merges": [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]}
    if not added and NEVER in model["vocab"]:  # else llama.cpp ends a text at token 11, a comma
        never = model["vocab"][NEVER]
        found |= {f"tokenizer.ggml.{token}_token_id": never for token in ("bos", "eos")}
        found |= {"tokenizer.ggml.add_bos_token": False}
    return found


NEVER = "ÿ"  # the token of the byte 255, which no UTF-8 has
#: Pre-tokenizers by their name in GGUF files; all are lossless.
BYTES: JsonObject = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLITS: dict[str, JsonObject] = {
    "gpt-2": BYTES,
    "default": BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
}


def tokenizer(file: GGUF) -> str | None:
    """The byte-level BPE of a file as a `tokenizer.json`; None if it has none, or one of another kind."""
    given = file.metadata
    if isinstance(whole := given.get("tokenizer.huggingface.json"), str):
        return whole
    tokens, merges, kinds = (given.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges", "token_type"))
    split = SPLITS.get(given.get("tokenizer.ggml.pre", "default"))
    if given.get("tokenizer.ggml.model") != "gpt2" or split is None:
        return None
    if not (isinstance(tokens, list) and isinstance(merges, list) and isinstance(kinds, list)):
        return None
    if len(tokens) != len(kinds) or not all(isinstance(word, str) for word in [*tokens, *merges]):
        raise UserError(f"{file.path}: the tokenizer has {len(tokens):,} tokens and {len(kinds):,} types of tokens")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": i, "content": word, **flags} for i, word in enumerate(tokens) if kinds[i] == CONTROL]
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(tokens)}, "merges": merges}
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "decoder": BYTES, "model": model}
    return json.dumps(content, ensure_ascii=False)
