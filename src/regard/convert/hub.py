"""The hub layout: a folder with `config.json`, `model.safetensors` (or several, with an index) and `tokenizer.json`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.convert.family import JsonObject, Settings, families, family_of
from regard.convert.keys import entries, exported
from regard.convert.lazy import LazyTensors
from regard.convert.onnx_weights import OnnxTensors, onnx_files
from regard.convert.weights import Imported, chat_format, convert, untied
from regard.data import Specials
from regard.errors import UserError
from regard.models.base import Model, ModelConfig
from regard.untrusted import check_depth, open_plain, read_plain, unreadable

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MASKS = ("[MASK]", "<mask>")
GENERATION = "generation_config.json"
SPECIALS = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Tensors(LazyTensors):
    """The tensors of one or several safetensors files, each read when it is asked for."""

    def __init__(self, files: list[Path]):
        self._places: dict[str, Any] = {}
        for path in files:
            try:
                open_plain(path, follow=True)  # not a FIFO or a device: the library would wait
                file = safe_open(path, framework="pt", device="cpu")
                names = list(file.keys())
            except UserError:
                raise
            except (SafetensorError, OSError, ValueError) as error:
                raise UserError(f"{path} is no whole safetensors file ({error}); get it again") from error
            for name in names:
                if name in self._places:
                    raise UserError(f"the tensor {name} is in two files of {path.parent}; get them again")
                self._places[name] = file

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = self._places[name].get_tensor(name)
        except (SafetensorError, ValueError) as error:
            raise UserError(f"the tensor {name} cannot be read ({error}); get the file again") from error
        if tensor.dtype not in FLOATS:
            raise UserError(f"the tensor {name} holds {tensor.dtype}, not floating-point numbers: it is quantized")
        return tensor


def read_json(path: Path) -> JsonObject:
    """A JSON object of a received folder."""
    try:
        found = json.loads(read_plain(path, follow=True).decode())
        check_depth(found)
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}; give the folder of a model in the hub's layout") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError):
            raise unreadable(path, error) from error
        raise UserError(f"{path} is no JSON file ({error}); get it again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; get it again")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model; other formats are refused with the way to convert them."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        table = read_json(folder / INDEX).get("weight_map")
        listed = list(table.values()) if isinstance(table, dict) else []
        names = {name for name in listed if isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name)}
        if not names or not all(isinstance(name, str) and name in names for name in listed):
            raise UserError(f"{folder / INDEX} lists no safetensors files in its folder; get it again")
        if missing := sorted(name for name in names if not (folder / name).exists()):
            raise UserError(f"{folder} has no {missing[0]}, which {INDEX} lists; get it")
        return [folder / name for name in sorted(names)]
    if len(files := sorted(folder.glob("*.safetensors"))) == 1:  # under another name
        return files
    if pickles := sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt")):
        raise UserError(
            f"{folder / pickles[0]} is a pickle, which can run code when it is read; convert it to safetensors: load "
            'it where you trust it, and `model.save_pretrained("folder", safe_serialization=True)`'
        )
    raise UserError(f"{folder} has no {WEIGHTS}; give the folder of a model in the hub's layout")


def open_weights(folder: Path, onnx: Path | None, prefix: str) -> Mapping[str, Tensor]:
    """The tensors of a folder: those of its safetensors files if it has any, else of ONNX files.

    The encoder of an encoder-decoder was exported on its own: its names lack ``prefix`` and the word encoder.
    """
    safe = onnx is None and any(folder.glob("*.safetensors*"))
    if safe or not (files := onnx_files(folder, onnx)):
        return Tensors(weight_files(folder))
    return OnnxTensors({path: f"{prefix}encoder." if path.name.startswith("encoder_") else "" for path in files})


def read_hub(folder: Path, ignore: tuple[str, ...] = (), onnx: Path | None = None) -> Imported:
    """The model of a folder in the hub's layout.

    ``ignore`` are fields of config.json that are known not to matter; ``onnx`` is the file with the weights.
    """
    given = read_json(folder / CONFIG)
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in families():
        raise UserError(f"{folder / CONFIG}: the model type {kind!r} is not known; known are {', '.join(families())}")
    path = folder / "tokenizer.json"
    tokenizer = read_plain(path, follow=True).decode("utf-8", "replace") if path.exists() else None
    family, settings = families()[kind](), Settings({"mask_token_id": mask_token(tokenizer), **given})
    try:
        config = family.config(kind, settings)
        settings.ignore(*ignore)
        if unread := settings.unread:
            raise UserError(
                f"{folder / CONFIG} has the field {unread[0]!r}, which is not known and may change what the model "
                f"computes; if it does not, add --ignore {unread[0]}"
            )
        config.check()
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    theirs = open_weights(folder, onnx, family.prefix)
    if isinstance(theirs, OnnxTensors):
        config = untied(family, config, theirs)
    weights, certificate = convert(family, kind, config, theirs)
    certificate.dequantized = theirs.dequantized if isinstance(theirs, OnnxTensors) else []
    specials = special_tokens(folder, config)
    return Imported(config, weights, certificate, tokenizer, chat(folder), specials, forbidden_tokens(folder, config))


def mask_token(tokenizer: str | None) -> int | None:
    """The id of the mask token in a `tokenizer.json`, which `config.json` does not name; None if there is none."""
    try:
        added = json.loads(tokenizer or "{}")["added_tokens"]
        return next(one["id"] for one in added if one["content"] in MASKS and type(one["id"]) is int)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):  # the tokenizer's loader says why
        return None


def generation_settings(folder: Path) -> JsonObject:
    """The fields of the two files of settings that matter when text is generated."""
    given = read_json(folder / CONFIG)
    if not (folder / GENERATION).exists():
        return given
    return read_json(folder / GENERATION) | {name: value for name, value in given.items() if value is not None}


def forbidden_tokens(folder: Path, config: ModelConfig) -> JsonObject:
    """Tokens that an encoder-decoder must not write, anywhere or first, as those of Whisper that are no speech."""
    given = generation_settings(folder)
    found = {"forbidden": given.get("suppress_tokens"), "forbidden_first": given.get("begin_suppress_tokens")}
    return {
        name: tuple(one for one in tokens if type(one) is int and 0 <= one < config.vocabulary)
        for name, tokens in found.items()
        if isinstance(tokens, list) and len(tokens) <= config.vocabulary
    }


def special_tokens(folder: Path, config: ModelConfig) -> Specials | None:
    """The special tokens of an encoder-decoder, from its two files of settings; None if they do not name them."""
    given = generation_settings(folder)
    ids = [one[0] if isinstance(one, list) and one else one for one in map(given.get, SPECIALS)]  # several may end it
    numbers = [one for one in ids if type(one) is int and 0 <= one < config.vocabulary]
    return Specials(*numbers) if len(numbers) == len(SPECIALS) else None


def chat(folder: Path) -> JsonObject | None:
    """The chat template of a folder and the tokens that it uses; None if there is none."""
    path = folder / "tokenizer_config.json"
    given = read_json(path) if path.exists() else {}
    template = given.get("chat_template")
    own = folder / "chat_template.jinja"
    if template is None and own.exists():
        template = read_plain(own, follow=True).decode("utf-8", "replace")

    def special(name: str) -> object:
        token = given.get(f"{name}_token")
        return token.get("content") if isinstance(token, dict) else token

    return chat_format(template, special)


def write_hub(
    folder: Path, config: ModelConfig, model: Model, tokenizer: Path | None, specials: Specials | None = None
) -> JsonObject:
    """Write a model in the hub's layout; the folder must not exist. Returns the `config.json`."""
    family, fields = family_of(config)
    if specials is not None:
        fields |= dict(zip(SPECIALS, specials, strict=True))
    weights = model.state_dict()
    table = entries(family.table(model), model, family.experts(config))
    theirs = exported(model, table, weights, family.tied(config))
    if family.bare(config):
        theirs = {name.removeprefix(family.prefix): tensor for name, tensor in theirs.items()}
    dtype = str(next(iter(theirs.values())).dtype).removeprefix("torch.")
    fields |= {"torch_dtype": dtype}
    temporary = folder.with_name(f".{folder.name}.unfinished")
    temporary.mkdir(parents=True)
    try:
        (temporary / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        save_file(theirs, temporary / WEIGHTS, metadata={"format": "pt"})
        if tokenizer is not None:
            shutil.copyfile(tokenizer, temporary / "tokenizer.json")
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return fields
