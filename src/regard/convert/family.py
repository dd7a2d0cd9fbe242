"""Families of published models. A family is one file: it reads and writes `config.json`, and has a key map.

A class in a file outside of the package is registered when it is defined (`--with FILE`), as every other part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

from regard.config import dump
from regard.config.notation import JsonObject
from regard.errors import UserError
from regard.models.base import Model, ModelConfig
from regard.models.parts import AttentionModelConfig, BlocksConfig

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
    raise UserError(
        f"no family of published models has the parts of this {config.kind}; those that can be exported: "
        f"{', '.join(families())}"
    )


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
    return table
