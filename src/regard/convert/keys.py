"""Key maps: the tensors of a published checkpoint under the names of this library, in both directions from one table.

A line of a table has one of our names and theirs:

    blocks.*.attention.qkv.weight    model.layers.*.self_attn.{q,k,v}_proj.weight
    blocks.*.attention.out.weight    transformer.h.*.attn.c_proj.weight    transposed

``*`` is the number of a layer, ``#`` that of an expert, and ``{q,k,v}`` stands for several tensors, which are one
matrix of ours, stacked in this order; in ``{q,-,v}`` the second has no tensor and is zero. ``row``: the vector is
stored with the shape [1, n], or a table with [1, m, n]; ``zero``: it may be absent, and is zero then. ``kernel=3,8,8``:
a row of the matrix is stored with this shape, as in a convolution. Lines for weights that a model does not
have are not used, and a weight that our model shares with another one, which has a line, needs none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    row: bool = False
    zero: bool = False
    kernel: tuple[int, ...] = ()

    def forward(self, theirs: Tensor) -> Tensor:
        """A tensor of theirs as a part of ours."""
        if self.kernel and theirs.shape[1:] == self.kernel:
            theirs = theirs.flatten(1)
        theirs = theirs[0] if self.row and theirs.shape[:1] == (1,) else theirs
        return theirs.t() if self.transposed and theirs.ndim == 2 else theirs

    def backward(self, ours: Tensor) -> Tensor:
        """A part of ours as a tensor of theirs."""
        ours = ours.t() if self.transposed else ours
        ours = ours.unflatten(1, self.kernel) if self.kernel else ours
        return (ours[None] if self.row else ours).contiguous()


@dataclass
class ImportCertificate:
    """What an import has shown: every tensor was used exactly once, and every weight of the model has a value."""

    family: str
    sha256: str = ""  # of our weights
    tensors: int = 0  # of the file that were used
    parameters: int = 0
    unused: list[str] = field(default_factory=list)  # tensors that the model does not use, such as stored masks
    tied: list[str] = field(default_factory=list)  # weights that share the tensor of another
    dequantized: list[str] = field(default_factory=list)  # tensors that the file stores as integers with scales
    differences: dict[str, float] = field(default_factory=dict)  # by layer, to the model of `transformers`

    def __str__(self) -> str:
        lines = [
            f"{self.family}: {self.parameters:,} parameters from {self.tensors:,} tensors, each used once, none missing"
        ]
        if self.tied:
            lines.append(f"tied: {', '.join(self.tied)}")
        if self.dequantized:
            lines.append(f"dequantized: {len(self.dequantized)} tensors such as {self.dequantized[0]}")
        if self.unused:
            lines.append(f"not used by this model: {len(self.unused)} tensors such as {self.unused[0]}")
        lines += [
            f"{place:24} differs from transformers by at most {gap:.2g}" for place, gap in self.differences.items()
        ]
        return "\n".join(lines)


def entries(table: str, model: Model, experts: int = 0) -> list[Entry]:
    """The entry of every weight of ``model``; a weight that the table does not name is a ``UserError``."""
    lines = [line.split() for line in table.strip().splitlines() if line.strip()]
    known = {ours: (theirs, rest) for ours, theirs, *rest in lines}
    found = []
    for name in model.state_dict():
        layer = _LAYER.search(name)
        general = name if layer is None else f"{name[: layer.start()]}*{name[layer.end() :]}"
        theirs, flags = known.get(name) or known.get(general) or ("", [])
        if theirs:
            names = _expanded(theirs if layer is None else theirs.replace("*", layer[0]), experts)
            kernel = tuple(int(n) for flag in flags if flag.startswith("kernel=") for n in flag[7:].split(","))
            transposed, row, zero = (flag in flags for flag in ("transposed", "row", "zero"))
            found.append(Entry(name, tuple(names), transposed, row, zero, kernel))
    same = shared(model)
    named = {same[entry.ours] for entry in found}
    for name in same:
        if same[name] not in named:
            raise UserError(
                f"this family has no name for the weight {name}; change the part of the model that needs it"
            )
    return found


def shared(model: Model) -> dict[str, str]:
    """Every weight of a model, and the last name of the same weight: its own, unless it is shared."""
    weights = model.state_dict(keep_vars=True)
    last = {id(weight): name for name, weight in weights.items()}
    return {name: last[id(weight)] for name, weight in weights.items()}


def _expanded(name: str, experts: int) -> Iterator[str]:
    """The names that ``name`` stands for: experts first, then the alternatives in braces."""
    for one in [name.replace("#", str(number)) for number in range(experts)] if "#" in name else [name]:
        braces = re.search(r"\{([^}]*)\}", one)
        if braces is None:
            yield one
        else:
            for choice in braces[1].split(","):
                yield "" if choice == "-" else one[: braces.start()] + choice + one[braces.end() :]


def sizes(model: Model, entry: Entry) -> tuple[int, ...]:
    """The rows of each of the tensors that one of our weights consists of."""
    count, rows = len(entry.theirs), model.state_dict()[entry.ours].shape[0]
    layer = model.get_submodule(entry.ours.rpartition(".")[0])
    if isinstance(layer, Linear) and len(layer.parts) == count:
        return layer.parts
    return (rows // count,) * count


def imported(
    model: Model,
    table: Sequence[Entry],
    theirs: Mapping[str, Tensor],
    certificate: ImportCertificate,
    tied: Mapping[str, str],
) -> dict[str, Tensor]:
    """The weights of ``model`` from ``theirs``; ``tied``: our weights that may be absent, and those they equal."""
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    wanted, same = model.state_dict(), shared(model)
    counted: dict[str, int] = {}
    present = {same[entry.ours] for entry in table if all(name in theirs for name in entry.theirs if name)}
    for entry in table:
        names = [name for name in entry.theirs if name]  # the others are zero
        missing = [name for name in names if name not in theirs]
        if missing and (entry.ours in tied or same[entry.ours] in present):
            certificate.tied.append(entry.ours)
            continue
        if missing and entry.zero:
            ours[entry.ours] = torch.zeros(wanted[entry.ours].shape)
            continue
        if missing:
            raise UserError(f"the checkpoint has no tensor {missing[0]}; get all of its files")
        if again := used & set(names):
            raise UserError(f"the tensor {min(again)} would be used twice; the family's key map is wrong")
        used |= set(names)
        pieces = []
        for name, rows in zip(entry.theirs, sizes(model, entry), strict=True):
            shape = (rows, *wanted[entry.ours].shape[1:])
            piece = entry.forward(theirs[name]) if name else torch.zeros(shape, dtype=theirs[names[0]].dtype)
            if tuple(piece.shape) != shape:
                raise UserError(
                    f"the tensor {name} has the shape {tuple(piece.shape)}, but config.json gives {shape}; they do not "
                    "belong together"
                )
            pieces.append(piece)
        counted[same[entry.ours]] = sum(piece.numel() for piece, name in zip(pieces, entry.theirs, strict=True) if name)
        ours[entry.ours] = torch.cat(pieces) if len(pieces) > 1 else pieces[0].contiguous()
    ours = _with_shared(model, ours)
    ours |= {name: ours[tied[name]] for name in certificate.tied if name not in ours}
    certificate.tensors, certificate.sha256 = len(used), fingerprint(ours)
    certificate.parameters = sum(counted.values())
    return ours


def _with_shared(model: Model, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """``ours`` with every name of a weight that has several; they must have the same value."""
    groups: dict[str, list[str]] = {}
    for name, same in shared(model).items():
        groups.setdefault(same, []).append(name)
    for names in groups.values():
        first, *rest = [name for name in names if name in ours] or [""]
        if not first:
            continue  # it is equal to another weight
        if different := [name for name in rest if not torch.equal(ours[first], ours[name])]:
            raise UserError(
                f"config.json says that {first} and {different[0]} are tied, but the checkpoint has different ones"
            )
        ours |= dict.fromkeys(names, ours[first])
    return ours


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """The SHA-256 of all weights in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def exported(
    model: Model, table: Iterable[Entry], weights: Mapping[str, Tensor], tied: Mapping[str, str]
) -> dict[str, Tensor]:
    """The tensors of a checkpoint from our ``weights``; ``tied`` ones are left out where they are equal."""
    theirs: dict[str, Tensor] = {}
    for entry in table:
        if entry.ours in tied and torch.equal(weights[entry.ours], weights[tied[entry.ours]]):
            continue
        for name, piece in zip(entry.theirs, weights[entry.ours].split(sizes(model, entry)), strict=True):
            if name:
                theirs[name] = entry.backward(piece)
            elif piece.any():
                raise UserError(f"{entry.ours} has a part that this family does not have, and it is not zero")
    return theirs
