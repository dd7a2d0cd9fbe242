"""Gradient norms by layer, and the size of an update relative to the weights."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from regard.doctor.context import Record

#: Weights that are copied to measure an update: in all, and of one matrix.
COPIED, PER_MATRIX = 2**22, 2**19
RECORDS = 20  # of metrics.jsonl over which medians are taken


class LayerPart(NamedTuple):
    """A part of one layer: blocks.1.attention is part "attention" of layer 1 in the stack "blocks"."""

    stack: str
    number: int  # -1: the model has no numbered layers
    part: str

    @property
    def layer(self) -> str:
        """The name of the layer."""
        return self.stack if self.number < 0 else ".".join(filter(None, (self.stack, str(self.number))))

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.layer, self.part)))

    def below(self, other: Self) -> bool:
        """Whether ``other`` is the same part of a layer nearer to the loss."""
        return (other.stack, other.part) == (self.stack, self.part) and other.number > self.number


Parameters = dict[LayerPart, list[tuple[str, nn.Parameter]]]


def layer_parts(model: nn.Module, *, frozen: bool = True) -> Parameters:
    """The named parameters of each part. Parts without a matrix, such as norms, are left out.

    ``frozen``: also those that are not trained, which is a fault unless the config asks for it.
    """
    parts: Parameters = {}
    for name, parameter in model.named_parameters():
        if not (frozen or parameter.requires_grad):
            continue
        *path, _ = name.split(".")
        at = next((i for i, part in enumerate(path) if part.isdigit()), None)
        if at is None:
            key = LayerPart(path[0] if path else "", -1, ".".join(path[1:2]))
        else:
            key = LayerPart(".".join(path[:at]), int(path[at]), "".join(path[at + 1 : at + 2]))
        parts.setdefault(key, []).append((name, parameter))
    return {key: members for key, members in parts.items() if any(p.ndim >= 2 for _, p in members)}


class Gradients(NamedTuple):
    """Gradient norms by layer part, before clipping."""

    norms: dict[LayerPart, float | None]  # None: no gradient
    total: float  # the usual norm of the whole gradient
    parameters: Parameters  # with their gradients; empty for norms from records

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module, parts: Parameters, norm: float, total: float) -> Self:
        """The present gradients. ``norm`` is that of the whole gradient before clipping, ``total`` a usual one."""
        grads = {p: p.grad for p in model.parameters() if p.grad is not None}
        if not grads:
            return cls({}, total, parts)
        values = torch.stack([n.float() for n in torch._foreach_norm(list(grads.values()))]).tolist()
        known, clipped = dict(zip(grads, values, strict=True)), math.hypot(*values)
        scale = norm / clipped if clipped and math.isfinite(norm) else 1.0  # clipping scales all alike
        norms: dict[LayerPart, float | None] = {}
        for key, members in parts.items():
            lengths = [known[p] for _, p in members if p in known]
            norms[key] = scale * math.hypot(*lengths) if lengths else None
        return cls(norms, total, parts)

    @classmethod
    def read(cls, records: Sequence[Record], total: float) -> Self:
        """Medians of the norms by layer that the run logged last."""
        logged = [record["gradients"] for record in records if isinstance(record.get("gradients"), dict)][-RECORDS:]
        norms: dict[LayerPart, float | None] = {}
        for name in logged[-1] if len(logged) > 1 else ():
            stack, _, number = name.rpartition(".")
            if number.isdigit():
                values = [float(one.get(name, 0.0)) for one in logged]
                norms[LayerPart(stack, int(number), "")] = statistics.median(values)
        return cls(norms, total, {})


class UpdateMeter:
    """Measures how far an update moves the matrices: copies some of their rows, and compares them one step later."""

    def __init__(self, parts: Parameters):
        owned = [p for members in parts.values() for _, p in members if p.ndim >= 2]
        room = max(1, min(PER_MATRIX, COPIED // max(len(owned), 1)))
        self._matrices = [(p, max(1, min(len(p), room // max(p[0].numel(), 1)))) for p in owned]
        self._before: list[Tensor] = []

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the weights before an update."""
        self._before = [p[:rows].clone() for p, rows in self._matrices]

    @torch.no_grad()
    def compare(self) -> float | None:
        """The median of |update| / |weight| over the matrices. None if no weights were copied before the update."""
        if not self._before:
            return None
        moved = torch._foreach_norm(torch._foreach_sub([p[:rows] for p, rows in self._matrices], self._before))
        pairs = torch.stack([*moved, *torch._foreach_norm(self._before)]).float().view(2, -1).T.tolist()
        self._before = []
        ratios = [distance / length for distance, length in pairs if length > 0]
        return statistics.median(ratios) if ratios else None
