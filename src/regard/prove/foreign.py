"""Models of `transformers`: a folder with their configuration and, perhaps, weights.

No code in the folder is run: the configuration names one of the library's own classes, and weights are safetensors.
Without weights the model gets random ones, fewer layers and a smaller vocabulary: faults of masks, caches and padding
do not depend on either.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.prove.certify import certify
from regard.prove.model_under_test import SHORT, ModelUnderTest
from regard.prove.reduced import randomize_weights
from regard.prove.registry import Certificate, first_line
from regard.runs.disk import JsonObject

CLAIMS = ("future", "padding", "batching", "step", "finite")  # tested by default
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
LENGTHS = ("max_position_embeddings", "n_positions")
SPECIALS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
VOCABULARY = 512  # of a reduced model
LARGEST = 400_000_000  # parameters of a model that is built here
IMPLEMENTATIONS = ("sdpa", "eager")


class TransformersAdapter:
    """Calls a model of `transformers` as `certify` needs it: tokens to logits, without special tokens.

    This adapter is the one place that asks a foreign model and its config for attributes.
    """

    def __init__(self, model: Any, implementation: str | None = None, return_weights: bool = False):
        self.module, self.implementation = model, implementation
        self.config = model.config.get_text_config()  # of several configurations, that of the text
        self.options = {"output_attentions": True} if return_weights else {}
        specials = [self._setting(name) for name in SPECIALS]
        self.first = max((one for one in specials if one is not None and one < 16), default=-1) + 1
        self.vocabulary = min(VOCABULARY, self.config.vocab_size) - self.first

    def _setting(self, *names: str) -> int | None:
        """The first of these config entries that is an integer."""
        values = (getattr(self.config, name, None) for name in names)
        return next((value for value in values if isinstance(value, int)), None)

    @property
    def length(self) -> int:
        """The length of the test sequences; 4 positions are reserved, since some models count from an offset."""
        limit = self._setting(*LENGTHS)
        return max(4, min(SHORT, limit - 4)) if limit and limit > 8 else SHORT

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._logits(input_ids=tokens + self.first, use_cache=False)

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits with padding behind the rows, which ``attention_mask`` marks."""
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        ids, filler = tokens + self.first, self._setting("pad_token_id")
        if filler is not None and filler >= 0:
            ids = ids.masked_fill(~real, filler)
        return self._logits(input_ids=ids, attention_mask=real.long(), use_cache=False)

    def _logits(self, **arguments: Tensor | bool) -> Tensor:
        if self.implementation is not None:
            self.module.set_attn_implementation(self.implementation)
        return logits_of(self.module(**arguments, **self.options))

    def start(self, batch: int, capacity: int) -> None:
        """The first step makes the cache."""

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        """Decode with ``past_key_values``."""
        out = self.module(input_ids=tokens + self.first, past_key_values=state, use_cache=True)
        return logits_of(out), out.past_key_values

    def variants(self) -> dict[str, TransformersAdapter]:
        """An adapter for each attention implementation that the model has."""
        own = getattr(self.module.config, "_attn_implementation", None)
        available = filter(self._has, IMPLEMENTATIONS)
        found = {f"{name} attention": TransformersAdapter(self.module, name) for name in available}
        if "eager attention" in found:
            found["eager attention with weights"] = TransformersAdapter(self.module, "eager", return_weights=True)
        if own in IMPLEMENTATIONS:
            self._has(own)  # sets it again
        return found

    def _has(self, implementation: str) -> bool:
        try:
            self.module.set_attn_implementation(implementation)
        except (ValueError, ImportError, AttributeError):
            return False
        return getattr(self.module.config, "_attn_implementation", implementation) == implementation


def logits_of(out: Any) -> Tensor:
    logits = getattr(out, "logits", None)
    return out.last_hidden_state if logits is None else logits


def folder_subject(folder: Path, causal: bool | None = None) -> ModelUnderTest:
    """The model of a folder, with every attention implementation that it has."""
    model, causal, about = build(folder, causal)
    adapter = TransformersAdapter(model.eval())
    with quiet():
        return ModelUnderTest(
            adapter,
            vocabulary=adapter.vocabulary,
            length=adapter.length,
            padded=adapter.padded,
            stepper=adapter if causal else None,
            variants=adapter.variants(),
            causal=causal,
            about=about,
        )


def certify_folder(folder: Path | str, causal: bool | None = None, claims: Sequence[str] | None = None) -> Certificate:
    """Test the model of a folder."""
    subject = folder_subject(Path(folder), causal)
    with quiet():
        return certify(subject, claims=CLAIMS if claims is None else claims)


def build(folder: Path, causal: bool | None = None) -> tuple[nn.Module, bool, str]:
    """The model that a folder's ``config.json`` describes, whether it is meant to be causal, and a description.

    ``causal`` None: as its architecture says.
    """
    settings = _read(folder / "config.json")
    transformers, auto = _library()
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        unknown = f"which transformers {transformers.__version__} does not know; install another version"
        raise UserError(f"{folder / 'config.json'} has the model_type {kind!r}, {unknown}")
    settings.pop("auto_map", None)  # code that came with the weights
    config: Any = transformers.CONFIG_MAPPING[kind].from_dict(settings)
    has_causal = kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    has_masked = kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if causal is None:
        names = [str(name) for name in settings.get("architectures") or ()]
        named = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
        causal = has_causal and (bool(getattr(config, "is_decoder", False)) or named or not has_masked)
    if causal and not has_causal:
        raise UserError(f"transformers has no causal language model of the type {kind}; test it with --no-causal")
    if hasattr(config, "is_decoder"):
        config.is_decoder = causal
    bidirectional = transformers.AutoModelForMaskedLM if has_masked else transformers.AutoModel
    with quiet():
        model, weights = _make(transformers.AutoModelForCausalLM if causal else bidirectional, config, folder)
    sight = "causal" if causal else "bidirectional"
    name = f"{type(model).__name__} of transformers {transformers.__version__} ({sight})"
    return model.float(), causal, f"{name}, {weights}"


def _library() -> tuple[Any, Any]:
    """``transformers`` and its tables of model classes; a ``UserError`` with the reason if it cannot be imported."""
    if find_spec("transformers") is None:
        raise UserError("models of other libraries need transformers: pip install transformers")
    try:
        import transformers
        from transformers.models.auto import modeling_auto as auto
    except Exception as error:  # its imports run code of many other packages
        raise UserError(
            f"transformers is installed but cannot be imported ({first_line(error)}); "
            "install versions that fit together: pip install -U transformers"
        ) from error
    return transformers, auto


def _make(maker: Any, config: Any, folder: Path) -> tuple[nn.Module, str]:
    """The model, and where its weights come from."""
    weights = any(folder.glob("*.safetensors"))
    if not weights:
        _reduce(config)
    with torch.device("meta"):
        count = sum(one.numel() for one in maker.from_config(config, trust_remote_code=False).parameters())
    if count > LARGEST:
        limit = f"more than are built here ({LARGEST:,})"
        raise UserError(f"the model of {folder} has {count:,} parameters, {limit}; give a smaller config.json")
    if not weights:
        model = randomize_weights(maker.from_config(config, trust_remote_code=False))
        return model, f"with random weights, two layers and at most {VOCABULARY} tokens"
    options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    return maker.from_pretrained(folder, config=config, **options), "with its weights"


def _read(path: Path) -> JsonObject:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"there is no {path}; give a folder with the config.json of a transformers model") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); correct it") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} is not a JSON object; give the config.json of a transformers model")
    return settings


def _reduce(config: Any) -> None:
    """Reduce the layers and the vocabulary, in place."""
    for name in LAYERS:
        if isinstance(layers := getattr(config, name, None), int):
            setattr(config, name, min(2, layers))
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        config.layer_types = kinds[:2]
    specials = {name: one for name, one in vars(config).items() if name.endswith("_token_id") and isinstance(one, int)}
    for name, one in specials.items():
        if one >= VOCABULARY:
            setattr(config, name, [*specials.values()].index(one))
    config.vocab_size = min(config.vocab_size, VOCABULARY)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's own warnings."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(level)
