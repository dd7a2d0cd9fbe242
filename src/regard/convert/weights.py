"""From the tensors of a checkpoint to our weights, by the key map of its family."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.convert.family import Family, JsonObject
from regard.convert.keys import ImportCertificate, entries, imported
from regard.convert.lazy import LazyTensors
from regard.data import Specials
from regard.errors import UserError
from regard.models.base import ModelConfig
from regard.models.parts import AttentionModelConfig
from regard.models.shapes import build_on_meta


class Imported(NamedTuple):
    """A model from elsewhere."""

    config: ModelConfig
    weights: dict[str, Tensor]
    certificate: ImportCertificate
    tokenizer: str | None = None  # the content of its tokenizer.json
    chat: JsonObject | None = None  # its chat template: template, bos, eos, stops
    specials: Specials | None = None  # of an encoder-decoder
    forbidden: JsonObject | None = None  # fields of `ImportedConfig`: tokens that it must not write


def chat_format(template: object, special: Callable[[str], object]) -> JsonObject | None:
    """The fields of a chat template, with the tokens that ``special`` finds by the names bos and eos.

    None if there is no template; a token that is no text is left out.
    """
    if not isinstance(template, str):
        return None
    bos, eos = (token if isinstance(token := special(name), str) else "" for name in ("bos", "eos"))
    return {"template": template, "bos": bos, "eos": eos, "stops": [eos]}


class Renamed(LazyTensors):
    """The tensors of a file under the names of the family's key map."""

    def __init__(self, theirs: Mapping[str, Tensor], family: Family):
        self._theirs = theirs
        bare = bool(theirs) and not any(name.startswith(family.prefix) for name in theirs)
        self._places: dict[str, str] = {}
        for name in theirs:
            new = (family.prefix if bare else "") + family.canonical(name)
            if new in self._places:
                raise UserError(f"the tensors {name} and {self._places[new]} are the same weight; get the file again")
            self._places[new] = name

    def __getitem__(self, name: str) -> Tensor:
        return self._theirs[self._places[name]]


def convert(
    family: Family, kind: str, config: ModelConfig, theirs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], ImportCertificate]:
    """Our weights from the tensors of a checkpoint: each is used once, or is no weight, and none is missing."""
    theirs = Renamed(theirs, family)
    model = build_on_meta(config, 4 * len(theirs) + 64)
    certificate = ImportCertificate(kind)
    table = entries(family.table(model), model, family.experts(config))
    weights = imported(model, table, theirs, certificate, family.tied(config))
    used = {name for entry in table for name in entry.theirs}
    certificate.unused = sorted(name for name in theirs if name not in used)
    if strange := [name for name in certificate.unused if not re.fullmatch(family.unused, name)]:
        raise UserError(
            f"the checkpoint has the tensor {strange[0]}, which a {kind} of this config.json does not have; "
            f"{len(strange)} such tensors in all"
        )
    return weights, certificate


def untied(family: Family, config: ModelConfig, theirs: Mapping[str, Tensor]) -> ModelConfig:
    """The config with a separate head, if the file has another one than the embedding that the config ties it to.

    That is so where both were quantized, each in its own way.
    """
    tied = family.tied(config)
    if not tied or not isinstance(config, AttentionModelConfig):
        return config
    theirs = Renamed(theirs, family)
    model = build_on_meta(config, 4 * len(theirs) + 64)
    names = {one.ours: one.theirs[0] for one in entries(family.table(model), model, family.experts(config))}
    head, table = (names.get(name, "") for name in ("unembed.weight", "embed.weight"))
    different = head in theirs and table in theirs and not torch.equal(theirs[head], theirs[table])
    return replace(config, tied=False) if different else config
