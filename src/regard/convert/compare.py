"""An imported model beside the same folder in `transformers`: the largest difference after each layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.convert.family import Family, JsonObject, families
from regard.convert.hub import CONFIG, read_json
from regard.convert.keys import entries
from regard.convert.weights import Imported
from regard.models.base import Encoder, LanguageModel, Model
from regard.models.transformer import Transformer
from regard.models.vit import ViT
from regard.nn.source import TokenSource

ROWS, LENGTH = 2, 16  # of the random tokens
_LAYER = re.compile(r"^(?:.*?\.)??\d+(?=\.)")


def layer_differences(folder: Path, given: Imported) -> dict[str, float]:
    """By layer: the largest difference, relative to the largest value.

    Empty if `transformers` is not installed, if the weights are ONNX, or if the model reads something else than tokens.
    The architecture that config.json names is loaded from the folder's safetensors; no code of the folder is run.
    """
    if find_spec("transformers") is None or not any(folder.glob("*.safetensors")):
        return {}
    config = read_json(folder / CONFIG)
    model = given.config.build().eval()
    model.load_state_dict(given.weights)
    if (inputs := _inputs(model)) is None:
        return {}
    theirs = _load(folder, config)
    if theirs is None:
        return {}
    layers = _layers(families()[config["model_type"]](), model)
    with torch.inference_mode(), ExitStack() as hooks:
        mine, others = _capture(model, list(layers), hooks), _capture(theirs, list(layers.values()), hooks)
        logits, answer = model(*inputs.ours), theirs(**inputs.theirs)
    found = {name: _gap(mine[name], others[layers[name]]) for name in layers if name in mine and layers[name] in others}
    if "logits" in answer and answer["logits"].shape == logits.shape:
        found["logits"] = _gap(logits, answer["logits"])
    return found


def _load(folder: Path, config: JsonObject) -> Any:
    """The model of `transformers`; None if config.json names no class of the library."""
    import transformers

    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in dir(transformers):
        return None
    kind = getattr(transformers, name)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    safe: JsonObject = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    return kind.from_pretrained(folder, **safe, attn_implementation="eager", dtype=torch.float32).eval()


def _layers(family: Family, model: Model) -> dict[str, str]:
    """The module names of our layers and theirs, from the key map."""
    found: dict[str, str] = {}
    modules = {name for name, _ in model.named_modules()}
    for entry in entries(family.table(model), model, family.experts(model.config)):
        ours, theirs = (_LAYER.match(name) for name in (entry.ours, next(filter(None, entry.theirs), "")))
        if ours and theirs and ours[0] in modules:
            found.setdefault(ours[0], theirs[0])
    return found


class _Inputs(NamedTuple):
    """The same tokens or images for both models."""

    ours: tuple[Tensor, ...]
    theirs: dict[str, Tensor | bool]


def _inputs(model: Model) -> _Inputs | None:
    """Random tokens or images; None for a model that reads something else."""
    length = min(LENGTH, model.limit or LENGTH)
    generator = torch.Generator().manual_seed(1)
    if isinstance(model, ViT):
        images = torch.randn(ROWS, model.channels, model.config.image, model.config.image, generator=generator)
        return _Inputs((images,), {"pixel_values": images})

    def draw(vocabulary: int) -> Tensor:  # [B, N]
        return torch.randint(vocabulary, (ROWS, length), generator=generator)

    seen = torch.ones(ROWS, length, dtype=torch.long)
    if isinstance(model, Transformer) and isinstance(model.embed_source, TokenSource):
        source, target = draw(model.source_vocabulary), draw(model.config.vocabulary)
        named = {"input_ids": source, "attention_mask": seen, "decoder_input_ids": target, "use_cache": False}
        return _Inputs((target, source, seen.sum(1)), named)
    if isinstance(model, LanguageModel | Encoder):
        tokens = draw(model.config.vocabulary)
        return _Inputs((tokens,), {"input_ids": tokens, "attention_mask": seen})
    return None


def _capture(model: nn.Module, names: Sequence[str], hooks: ExitStack) -> dict[str, Tensor]:
    """What the modules of these names return, filled while the model runs."""
    outputs: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    # The file of a model without a head leaves the prefix out.
    known = {name: next((one for one in modules if one == name or name.endswith(f".{one}")), None) for name in names}
    for name, found in known.items():
        if found:

            def keep(_: nn.Module, __: object, output: Any, name: str = name) -> None:
                outputs[name] = output[0] if isinstance(output, tuple) else output

            hooks.callback(modules[found].register_forward_hook(keep).remove)
    return outputs


def _gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))
