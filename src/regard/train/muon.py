"""Muon: momentum, then the nearest (semi-)orthogonal matrix instead of the gradient (Jordan et al. 2024).

`torch.optim.Muon` processes one matrix at a time, always in bfloat16, which some CPUs cannot multiply. This one batches
matrices of equal shape and computes in float32 on a CPU.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.parallel.tensors import is_sharded, whole

if TYPE_CHECKING:
    from regard.parallel.tensor import CutMatrix

#: Quintic coefficients that lift small singular values fastest (Jordan et al. 2024).
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon for 2-D parameters: rate · max(1, rows/columns)^0.5 times the orthogonalized Nesterov momentum.

    The update of a parameter with r rows and c columns has all singular values near 1; the factor makes the change
    of the layer's output alike for wide and tall matrices. Weight decay is decoupled, as in AdamW.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        parts: Mapping[Tensor, tuple[int, ...]] | None = None,
        cuts: Mapping[Tensor, "CutMatrix"] | None = None,
    ):
        """``parts``: the numbers of rows of matrices that are stacked in one parameter (queries, keys and values), each
        of which is orthogonalized by itself. ``cuts``: the parameters that tensor parallelism has cut."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.parts, self.cuts = dict(parts or {}), dict(cuts or {})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon is for matrices, got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in parameters]
            buffers = [self.state[parameter]["momentum"] for parameter in parameters]
            torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
            # Nesterov: look one step ahead along the momentum.
            ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])
            # The whole matrix is orthogonalized, not this process's shard of it.
            wholes = [
                self._joined(parameter, whole(update)) for parameter, update in zip(parameters, ahead, strict=True)
            ]
            updates = self._updates(parameters, wholes)
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _updates(self, parameters: list[Tensor], ahead: list[Tensor]) -> list[Tensor]:
        """The orthogonal matrices, scaled, and sharded like the parameters."""
        sizes = [self._rows(parameter, len(update)) for parameter, update in zip(parameters, ahead, strict=True)]
        pieces = [piece for update, rows in zip(ahead, sizes, strict=True) for piece in update.split(rows)]
        left = iter([_scaled(piece) for piece in orthogonalize(pieces)])
        joined = [torch.cat([next(left) for _ in rows]) if len(rows) > 1 else next(left) for rows in sizes]
        return [
            _like(self.cuts[parameter].cut.of(update) if parameter in self.cuts else update, parameter)
            for update, parameter in zip(joined, parameters, strict=True)
        ]

    def _joined(self, parameter: Tensor, update: Tensor) -> Tensor:
        return self.cuts[parameter].joined(update) if parameter in self.cuts else update

    def _rows(self, parameter: Tensor, rows: int) -> tuple[int, ...]:
        """The rows of each matrix in a parameter, of which the whole has so many."""
        own = parameter.shape[0]
        return tuple(part * rows // own for part in self.parts.get(parameter, (own,)))


def _scaled(piece: Tensor) -> Tensor:
    """Times max(1, rows/columns)^0.5."""
    return piece * (piece.shape[0] / piece.shape[1]) ** 0.5 if piece.shape[0] > piece.shape[1] else piece


def orthogonalize(matrices: list[Tensor]) -> list[Tensor]:
    """For each matrix U·S·V^T an approximation of U·V^T: five quintic Newton-Schulz steps, batched by shape."""
    wide = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    places: dict[tuple, list[int]] = defaultdict(list)
    for place, matrix in enumerate(wide):
        places[tuple(matrix.shape), matrix.dtype, matrix.device].append(place)
    results: list[Tensor] = list(matrices)
    for (_, dtype, device), members in places.items():
        stack = torch.stack([wide[place] for place in members])  # [n, rows, columns], rows <= columns
        # The Frobenius norm is at least the largest singular value, so all lie in [0, 1] after this.
        stack = stack / torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True).clamp(min=1e-7)
        if device.type == "cuda":
            stack = newton_schulz(stack.bfloat16())
        else:
            long = 2 * stack.shape[2] >= 3 * stack.shape[1]  # above this ratio the second form is faster
            stack = newton_schulz_small(stack) if long else newton_schulz(stack)
        for place, result in zip(members, stack.to(dtype).unbind(), strict=True):
            results[place] = result if matrices[place].shape[0] <= matrices[place].shape[1] else result.mT
    return results


def newton_schulz(x: Tensor) -> Tensor:
    """x[n, rows, columns] with singular values in [0, 1] -> the same singular vectors, values near 1.

    Each step is x <- (A + B·M + C·M²)·x with M = x·x^T.
    """
    for _ in range(STEPS):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.baddbmm(x, polynomial, x, beta=A)
    return x


def newton_schulz_small(x: Tensor) -> Tensor:
    """The same map with the steps on the small Gram matrix, for full precision.

    With P = A + B·M + C·M², the next Gram matrix is P·M·P and the result is the product of all P, times x: only the
    first and the last product involve the long side. It saves a third of the time at 128 x 512; in bfloat16 it would
    be too coarse, since a Gram matrix has the squares of the singular values.
    """
    gram = torch.bmm(x, x.mT)
    product = torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device).expand_as(gram)
    for step in range(STEPS):
        polynomial = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)  # P - A
        product = torch.baddbmm(product, polynomial, product, beta=A)
        if step < STEPS - 1:
            left = torch.baddbmm(gram, polynomial, gram, beta=A)  # P·M
            gram = torch.baddbmm(left, left, polynomial, beta=A)  # P·M·P
    return torch.bmm(product, x)


def _like(update: Tensor, parameter: Tensor) -> Tensor:
    """``update`` sharded like ``parameter``."""
    if not is_sharded(parameter):
        return update
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    replicated = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements)
