"""Families of published models. A family is one file: it reads and writes `config.json`, and has a key map.

A class in a file outside of the package is registered when it is defined (`--with FILE`), as every other part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

from regard.config import dump, override
from regard.config.key_path import flag_text
from regard.config.notation import JsonObject
from regard.errors import UserError
from regard.models.base import Model, ModelConfig
from regard.models.parts import AttentionModelConfig, BlocksConfig
from regard.nn.norm import LayerNormConfig, RMSNormConfig
from regard.nn.positions.position import RotaryConfig

#: Fields of any config.json that do not change what a model computes for given tokens.
_NEUTRAL = """
    architectures model_type transformers_version torch_dtype dtype use_cache bos_token_id eos_token_id pad_token_id
    unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    initializer_range initializer_factor _name_or_path id2label label2id problem_type return_dict output_attentions
    output_hidden_states task_specific_params gradient_checkpointing chunk_size_feed_forward is_encoder_decoder
    keys_to_ignore_at_inference _attn_implementation _attn_implementation_autoset num_labels tokenizer_class prefix
"""
_GENERATION = """
    max_length min_length max_new_tokens num_beams num_beam_groups num_return_sequences early_stopping do_sample top_k
    top_p typical_p temperature no_repeat_ngram_size encoder_no_repeat_ngram_size length_penalty repetition_penalty
    diversity_penalty bad_words_ids suppress_tokens begin_suppress_tokens forced_decoder_ids remove_invalid_values
    force_bos_token_to_be_generated exponential_decay_length_penalty return_dict_in_generate output_scores _num_labels
"""
NEUTRAL: frozenset[str] = frozenset((_NEUTRAL + _GENERATION).split())


class Settings:
    """The fields of a `config.json`, read through an allow-list: `unread` are those that nobody has asked for."""

    def __init__(self, fields: Mapping[str, Any]):
        self._fields, self._read = fields, {*NEUTRAL}

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field; ``default`` if it is absent or null. Its type must be that of the default."""
        self._read.add(name)
        value = self._fields.get(name)
        if value is None:
            return default
        kind = type(default)
        if default is not None and not (isinstance(value, kind) or (kind is float and type(value) is int)):
            raise UserError(f"config.json: {name} is {value!r}, but must be of the type {kind.__name__}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above 0, of at most 31 bits: PyTorch cannot multiply larger sizes."""
        value = self.get(name, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise UserError(f"config.json: {name} is {value!r}, but must be a whole number from 1 to {2**31 - 1:,}")
        return value

    def require(self, name: str, *allowed: Any) -> None:
        """Refuse another value than ``allowed``; an absent field has the first of them."""
        value = self.get(name)
        if value is not None and value not in allowed:
            options = " or ".join(repr(one) for one in allowed if one is not None)
            raise UserError(f"config.json: {name} is {value!r}; only {options} can be imported")

    def ignore(self, *names: str) -> None:
        """Fields that matter only in training, or not for this model."""
        self._read |= set(names)

    @property
    def unread(self) -> list[str]:
        """Fields with a value that nobody has asked for."""
        return sorted(name for name, value in self._fields.items() if name not in self._read and value not in EMPTY)


EMPTY: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})


class Family:
    """The models of one or several `model_type`s of config.json."""

    kinds: ClassVar[tuple[str, ...]] = ()  # the model types
    keys: ClassVar[str] = ""  # see `regard.convert.keys`
    unused: ClassVar[str] = r"$^"  # a pattern of tensors that are no weights, or that no model of ours uses
    prefix: ClassVar[str] = ""  # of all tensors but the head's; the file of a model without a head leaves it out
    registry: ClassVar[dict[str, type[Family]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for kind in cls.kinds:
            Family.registry[kind] = cls

    def config(self, kind: str, given: Settings) -> ModelConfig:
        """Our config of a `config.json`."""
        raise NotImplementedError

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        """The `config.json` of one of our configs for a model type; None if it has parts that the type does not have.

        Whether the model type has all of its parts is found by reading the fields again: see `family_of`.
        """
        raise NotImplementedError

    def table(self, model: Model) -> str:
        """The key map of a model."""
        return self.keys

    def bare(self, config: ModelConfig) -> bool:
        """Whether the model has no head, so that its file leaves the prefix out."""
        return False

    def canonical(self, name: str) -> str:
        """The name of a tensor in the key map, if files have older names for it too."""
        return name

    def experts(self, config: ModelConfig) -> int:
        """How many experts a layer has, which `#` in the key map counts."""
        return 0

    def tied(self, config: ModelConfig) -> dict[str, str]:
        """Our weights that share the tensor of another, and that one."""
        shared = isinstance(config, AttentionModelConfig) and config.tied
        return {"unembed.weight": "embed.weight"} if shared else {}


@cache
def _import_families() -> None:
    package = import_module("regard.convert.families")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def families() -> dict[str, type[Family]]:
    """Every registered family by model type."""
    _import_families()
    return Family.registry


def family_of(config: ModelConfig) -> tuple[Family, JsonObject]:
    """The family and the `config.json` of a model; a ``UserError`` if no model type computes the same."""
    if (found := _computing_the_same(config)) is not None:
        return found
    onnx = "; an ONNX file needs no family: regard export RUN FILE.onnx" if config.reads == "text" else ""
    raise UserError(f"no family of published models has the parts of this {config.kind}; {_in_the_way(config)}{onnx}")


def _computing_the_same(config: ModelConfig) -> tuple[Family, JsonObject] | None:
    """The family and the `config.json` of the model type that computes the same; None if there is none."""
    for kind, family in families().items():
        found = family()
        fields = found.settings(kind, config)
        if fields is None:
            continue
        try:
            back = _computing(found.config(kind, Settings(fields)))
        except (UserError, ValueError):
            continue
        if back == _computing(config):
            return found, {"model_type": kind, **fields}
    return None


def _in_the_way(config: ModelConfig) -> str:
    """The parts that the nearest model type does not have, and the options that give a model of this type."""
    found = {kind: near for kind in families() if (near := _nearest(kind, config)) is not None}
    if not found:
        return f"those that can be exported: {', '.join(families())}"
    kind = min(found, key=lambda kind: len(found[kind]))
    old, new = dump(config), found[kind]
    parts = ", ".join(f"model.{name} = {_short(old.get(name))}" for name in new)
    options = " ".join(f"--model.{name} {_short(value)}" for name, value in new.items())
    return f"in the way of the nearest, {kind}, are {parts}: a run that is trained with {options} can be exported"


def _nearest(kind: str, config: ModelConfig) -> JsonObject | None:
    """The values with which a config becomes one of a model type; None if they are not only other parts."""
    family = families()[kind]()
    variants = [config]
    if isinstance(config, AttentionModelConfig):  # most types say nothing about a config with another norm
        variants += [replace(config, norm=LayerNormConfig())]
        variants += [replace(config, norm=RMSNormConfig(), position=RotaryConfig())]
    for variant in variants:
        try:
            fields = family.settings(kind, variant)
            back = None if fields is None else family.config(kind, Settings(fields))
        except (UserError, ValueError):
            continue
        if isinstance(back, type(config)):
            ours, theirs, plain = _computing(config), _computing(back), dump(back)
            new = {name: plain.get(name) for name in ours | theirs if ours.get(name) != theirs.get(name)}
            if _is_reached(kind, config, new):
                return _fewest(kind, config, new)
    return None


def _fewest(kind: str, config: ModelConfig, new: JsonObject) -> JsonObject:
    """Those of the values that are needed; the size of tables that are left out is not."""
    for name in list(new):
        others = {key: value for key, value in new.items() if key != name}
        if _is_reached(kind, config, others):
            new = others
    return new


def _is_reached(kind: str, config: ModelConfig, new: JsonObject) -> bool:
    """Whether the options of ``new`` give a config that a model type computes."""
    words = [word for name, value in new.items() for word in (f"--{name}", _short(value))]
    try:
        found = _computing_the_same(override(config, words))
    except UserError:
        return False
    return found is not None and found[1]["model_type"] == kind


def _short(plain: object) -> str:
    """A value as an option: a part by its kind."""
    if isinstance(plain, Mapping):
        return str(plain["kind"])
    return "none" if plain is None else flag_text(plain)


def _computing(config: ModelConfig) -> JsonObject:
    """What a config's model computes: without what matters in training only, and with defaults in numbers."""
    table = dump(config)
    if isinstance(config, BlocksConfig):
        size = config.projection.head_width(config.width, config.heads)
        table["kv_heads"] = config.key_heads
        table["projection"] = {**table["projection"], "size": size}
        table["feedforward"] = {**table["feedforward"], "ratio": config.feedforward.hidden(config.width)}
    for name in ("dropout", "attention_dropout", "zero_init", "backend"):
        table.pop(name, None)
    for name in ("balance", "z", "dropout"):
        table.get("feedforward", {}).pop(name, None)
    if table.get("ngrams") == 1:  # there are no tables
        table.pop("buckets", None)
    return table
