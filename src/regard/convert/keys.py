"""Key maps: the tensors of a published checkpoint under the names of this library, in both directions from one table.

A line of a table has one of our names and theirs:

    blocks.*.attention.qkv.weight    model.layers.*.self_attn.{q,k,v}_proj.weight
    blocks.*.attention.out.weight    transformer.h.*.attn.c_proj.weight    transposed

``*`` is the number of a layer, ``#`` that of an expert, and ``{q,k,v}`` stands for several tensors, which are one
matrix of ours, stacked in this order. Lines for weights that a model does not have are not used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.base import Model
from regard.nn.linear import Linear

_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.)")


@dataclass(frozen=True)
class Entry:
    """One weight of ours and the tensors that it consists of."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False


@dataclass
class Certificate:
    """What an import has shown: every tensor was used exactly once, and every weight of the model has a value."""

    family: str
    sha256: str = ""  # of our weights
    tensors: int = 0  # of the file that were used
    parameters: int = 0
    unused: list[str] = field(default_factory=list)  # tensors that hold no weights, such as stored masks
    tied: list[str] = field(default_factory=list)  # weights that share the tensor of another
    differences: dict[str, float] = field(default_factory=dict)  # by layer, to the model of `transformers`

    def __str__(self) -> str:
        lines = [
            f"{self.family}: {self.parameters:,} parameters from {self.tensors:,} tensors, each used once, none missing"
        ]
        if self.tied:
            lines.append(f"tied: {', '.join(self.tied)}")
        if self.unused:
            lines.append(f"not weights, left out: {len(self.unused)} tensors such as {self.unused[0]}")
        lines += [
            f"{place:24} differs from transformers by at most {gap:.2g}" for place, gap in self.differences.items()
        ]
        return "\n".join(lines)


def entries(table: str, model: Model, experts: int = 0) -> list[Entry]:
    """The entry of every weight of ``model``; a weight that the table does not name is a ``UserError``."""
    lines = [line.split() for line in table.strip().splitlines() if line.strip()]
    known = {ours: (theirs, "transposed" in rest) for ours, theirs, *rest in lines}
    found = []
    for name in model.state_dict():
        layer = _LAYER.search(name)
        general = name if layer is None else f"{name[: layer.start()]}*{name[layer.end() :]}"
        theirs, transposed = known.get(name) or known.get(general) or (None, False)
        if theirs is None:
            raise UserError(
                f"this family has no name for the weight {name}; change the part of the model that needs it"
            )
        if layer is not None:
            theirs = theirs.replace("*", layer[0])
        found.append(Entry(name, tuple(_expanded(theirs, experts)), transposed))
    return found


def _expanded(name: str, experts: int) -> Iterator[str]:
    """The names that ``name`` stands for: experts first, then the alternatives in braces."""
    for one in [name.replace("#", str(number)) for number in range(experts)] if "#" in name else [name]:
        braces = re.search(r"\{([^}]*)\}", one)
        if braces is None:
            yield one
        else:
            yield from (one[: braces.start()] + choice + one[braces.end() :] for choice in braces[1].split(","))


def sizes(model: Model, entry: Entry) -> tuple[int, ...]:
    """The rows of each of the tensors that one of our weights consists of."""
    count, rows = len(entry.theirs), model.state_dict()[entry.ours].shape[0]
    layer = model.get_submodule(entry.ours.rpartition(".")[0])
    if isinstance(layer, Linear) and len(layer.parts) == count:
        return layer.parts
    return (rows // count,) * count


def imported(
    model: Model,
    table: Iterable[Entry],
    theirs: Mapping[str, Tensor],
    certificate: Certificate,
    tied: Mapping[str, str],
) -> dict[str, Tensor]:
    """The weights of ``model`` from ``theirs``; ``tied``: our weights that may be absent, and those they equal."""
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    wanted = model.state_dict()
    for entry in table:
        missing = [name for name in entry.theirs if name not in theirs]
        if missing and entry.ours in tied:
            certificate.tied.append(entry.ours)
            continue
        if missing:
            raise UserError(f"the checkpoint has no tensor {missing[0]}; get all of its files")
        if again := used & set(entry.theirs):
            raise UserError(f"the tensor {min(again)} would be used twice; the family's key map is wrong")
        used |= set(entry.theirs)
        pieces = [theirs[name].t() if entry.transposed else theirs[name] for name in entry.theirs]
        for name, piece, rows in zip(entry.theirs, pieces, sizes(model, entry), strict=True):
            shape = (rows, *wanted[entry.ours].shape[1:])
            if tuple(piece.shape) != shape:
                raise UserError(
                    f"the tensor {name} has the shape {tuple(piece.shape)}, but config.json gives {shape}; they do not "
                    "belong together"
                )
        ours[entry.ours] = torch.cat(pieces) if len(pieces) > 1 else pieces[0].contiguous()
    for name in certificate.tied:
        ours[name] = ours[tied[name]]
    for name, other in tied.items():
        if name in ours and other in ours and not torch.equal(ours[name], ours[other]):
            raise UserError(f"config.json says that {name} and {other} are tied, but the checkpoint has different ones")
    certificate.tensors, certificate.sha256 = len(used), fingerprint(ours)
    certificate.parameters = sum(weight.numel() for name, weight in ours.items() if name not in tied)
    return ours


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """The SHA-256 of all weights in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def exported(
    model: Model, table: Iterable[Entry], weights: Mapping[str, Tensor], tied: Iterable[str]
) -> dict[str, Tensor]:
    """The tensors of a checkpoint from our ``weights``; tied ones are left out."""
    theirs: dict[str, Tensor] = {}
    for entry in table:
        if entry.ours in tied:
            continue
        for name, piece in zip(entry.theirs, weights[entry.ours].split(sizes(model, entry)), strict=True):
            theirs[name] = (piece.t() if entry.transposed else piece).contiguous()
    return theirs
