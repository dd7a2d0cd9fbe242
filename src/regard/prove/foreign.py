"""Models that nobody here wrote: a folder with a configuration of `transformers`, and perhaps weights.

Nothing in the folder is run: the configuration names one of the library's own classes, and weights are safetensors.
Without weights they are drawn at random, and the model gets fewer layers and tokens: faults of masks, caches and
padding do not depend on either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.prove.certify import certify
from regard.prove.randomize_weights import lively
from regard.prove.verdict import Certificate

JUDGED = ("future", "padding", "batching", "step", "finite")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
TOKENS = 512  # of a vocabulary that is made smaller
MOST = 400_000_000  # weights of a model that is built here
PATHS = ("sdpa", "eager")


class Built(NamedTuple):
    """A model, whether it is meant to be causal, and in words what it is."""

    model: nn.Module
    causal: bool
    about: str


class Answers:
    """The forward pass as a judge calls it: tokens without the special ones, that mean something else, to logits."""

    def __init__(self, model: nn.Module, path: str | None = None, weights: bool = False):
        self.module, self.path, self.weights = model, path, weights
        self.config: Any = model.config
        special = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
        found = [one for name in special if isinstance(one := getattr(self.config, name, None), int) and one < 16]
        self.first = max(found, default=-1) + 1
        self.vocabulary = min(TOKENS, int(self.config.vocab_size)) - self.first
        self.filler = getattr(self.config, "pad_token_id", None)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.logits(input_ids=tokens + self.first, use_cache=False)

    def padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """With padding behind the rows, told by ``attention_mask``."""
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        ids = tokens + self.first
        if isinstance(self.filler, int) and self.filler >= 0:
            ids = ids.masked_fill(~real, self.filler)
        return self.logits(input_ids=ids, attention_mask=real.long(), use_cache=False)

    def logits(self, **given: Any) -> Tensor:
        if self.path is not None:
            self.module.set_attn_implementation(self.path)  # type: ignore[operator]
        return _logits(self.module(**given, **({"output_attentions": True} if self.weights else {})))

    def start(self, batch: int, capacity: int) -> Any:
        return None

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """By way of ``past_key_values``."""
        out = self.module(input_ids=tokens + self.first, past_key_values=state, use_cache=True)
        return _logits(out), out.past_key_values


def _logits(out: Any) -> Tensor:
    found = getattr(out, "logits", None)
    return out.last_hidden_state if found is None else found


def certify_folder(folder: Path | str, causal: bool | None = None, claims: Sequence[str] | None = None) -> Certificate:
    """Judge the model of a folder."""
    return certify_foreign(*build(Path(folder), causal), claims=claims)


def certify_foreign(
    model: nn.Module, causal: bool = True, about: str = "", claims: Sequence[str] | None = None
) -> Certificate:
    """Judge a model of `transformers` on every path its attention has here."""
    with _quiet():
        model.eval()
        before = getattr(model.config, "_attn_implementation", None)
        answers = Answers(model)
        limit = getattr(model.config, "max_position_embeddings", None) or getattr(model.config, "n_positions", None)
        length = max(4, min(24, int(limit) - 4)) if isinstance(limit, int) and limit > 8 else 24
        ways = {f"{path} attention": Answers(model, path) for path in PATHS if _takes(model, path)}
        if "eager attention" in ways:
            ways["eager attention, asked for its weights"] = Answers(model, "eager", weights=True)
        if before in PATHS:
            model.set_attn_implementation(before)  # type: ignore[operator]
        try:
            return certify(
                answers,
                vocabulary=answers.vocabulary,
                length=length,
                padded=answers.padded,
                stepper=answers if causal else None,
                ways=ways,
                causal=causal,
                claims=JUDGED if claims is None else claims,
                about=about,
            )
        finally:
            if before in PATHS:
                model.set_attn_implementation(before)  # type: ignore[operator]


def _takes(model: Any, path: str) -> bool:
    """Whether the model has this way to compute attention."""
    try:
        model.set_attn_implementation(path)
    except (ValueError, ImportError, AttributeError):
        return False
    return getattr(model.config, "_attn_implementation", path) == path


def build(folder: Path, causal: bool | None = None) -> Built:
    """The model that a folder's ``config.json`` describes."""
    told = _read(folder / "config.json")
    try:
        import transformers
    except ImportError:
        raise UserError("models of other libraries need transformers: pip install transformers") from None
    from transformers.models.auto import modeling_auto as auto

    kind = told.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise UserError(
            f"{folder / 'config.json'} has the model_type {kind!r}, which transformers {transformers.__version__} does "
            "not know; install another version"
        )
    told.pop("auto_map", None)  # code that came with the weights
    config: Any = transformers.CONFIG_MAPPING[kind].from_dict(told)
    names = [str(name) for name in told.get("architectures") or ()]
    writes, reads = (
        kind in table for table in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    )
    if causal is None:
        named = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
        causal = writes and (bool(getattr(config, "is_decoder", False)) or named or not reads)
    if causal and not writes:
        raise UserError(f"transformers has no causal language model of the type {kind}; judge it with --no-causal")
    if hasattr(config, "is_decoder"):
        config.is_decoder = causal
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        _shrink(config)
    maker = (
        transformers.AutoModelForCausalLM
        if causal
        else transformers.AutoModelForMaskedLM
        if reads
        else transformers.AutoModel
    )
    with _quiet():
        with torch.device("meta"):
            count = sum(one.numel() for one in maker.from_config(config, trust_remote_code=False).parameters())
        if count > MOST:
            raise UserError(
                f"the model of {folder} has {count:,} weights, more than are built here ({MOST:,}); give a smaller "
                "config.json"
            )
        if weights:
            model = maker.from_pretrained(
                folder, config=config, local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
        else:
            model = lively(maker.from_config(config, trust_remote_code=False))
    of = "with its weights" if weights else "with random weights, two layers and at most 512 tokens"
    sight = "causal" if causal else "sees both ways"
    return Built(
        model.float(),
        causal,
        f"{type(model).__name__} of transformers {transformers.__version__} ({sight}), {of}",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"there is no {path}; hf: takes a folder with the config.json of a transformers model"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); mend it") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no JSON object; give the config.json of a transformers model")
    return found


def _shrink(config: Any) -> None:
    """Fewer layers and tokens, in place."""
    for name in LAYERS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(2, getattr(config, name)))
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        config.layer_types = kinds[:2]
    special = [one for name, one in vars(config).items() if name.endswith("_token_id") and isinstance(one, int)]
    for name in [name for name in vars(config) if name.endswith("_token_id")]:
        if isinstance(one := getattr(config, name), int) and one >= TOKENS:
            setattr(config, name, special.index(one))
    config.vocab_size = min(config.vocab_size, TOKENS)


@contextmanager
def _quiet() -> Iterator[None]:
    """The library's own warnings are not about what is judged."""
    import warnings

    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(level)
