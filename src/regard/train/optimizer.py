"""Optimizer configs (AdamW, Muon), and one wrapper with flat state for the engine and the checkpoint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from regard.config import Choice, option
from regard.errors import UserError
from regard.models import Model
from regard.nn.linear import Linear
from regard.parallel.pieces import Cut, Sliced, fill, whole_shape
from regard.train.muon import Muon


class Optimizer:
    """One or more torch optimizers as one, with a flat state of named tensors."""

    def __init__(self, model: nn.Module, parts: Sequence[torch.optim.Optimizer]):
        self.parts = tuple(parts)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.groups = [group for part in self.parts for group in part.param_groups]
        self.parameters = [parameter for group in self.groups for parameter in group["params"]]
        for group in self.groups:
            group["peak_lr"] = group["lr"]

    def step(self, factor: float) -> None:
        """One update with every learning rate multiplied by ``factor``."""
        for group, lr in zip(self.groups, self.learning_rates(factor), strict=True):
            group["lr"] = lr
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Set the gradients to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def learning_rates(self, factor: float) -> list[float]:
        """The learning rates at ``factor``; the first one is logged."""
        return [group["peak_lr"] * factor for group in self.groups]

    def state(self) -> dict[str, Tensor]:
        """The optimizer state as ``<parameter>/<key>``; the tensors are not copied."""
        return {
            f"{self.names[parameter]}/{key}": value
            for part in self.parts
            for parameter, values in part.state.items()
            for key, value in values.items()
        }

    def load(self, state: Mapping[str, Sliced], cuts: Mapping[str, Cut] = MappingProxyType({})) -> None:
        """Load a ``state()`` of whole tensors. Each keeps its dtype and is placed and sharded like its parameter.

        ``cuts`` of the parameters, by name; only this rank's pieces are read.
        """
        owners = {
            self.names[parameter]: (parameter, part)
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
        }
        for part in self.parts:
            part.state.clear()
        for key, value in state.items():
            name, _, slot = key.rpartition("/")
            if name not in owners:
                raise ValueError(f"the optimizer state has {key!r}, but the model has no trained parameter {name!r}")
            parameter, part = owners[name]
            if value.shape and tuple(value.shape) == whole_shape(parameter, cuts.get(name)):
                own = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                fill(own, value, cuts.get(name))
            else:  # a number
                own = value[tuple(slice(0, size) for size in value.shape)].to(parameter.device, copy=True)
            part.state[parameter][slot] = own


class OptimizerConfig(Choice):
    """Which optimizer trains the model."""

    lr: float  # the peak learning rate; the schedule multiplies it

    def build(self, model: Model, rates: Mapping[nn.Parameter, float] | None = None) -> Optimizer:
        """An optimizer for all trainable parameters of ``model``.

        ``rates``: a factor of the learning rate for some of them; given only where an experiment has some.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig, kind="adamw"):
    """AdamW (Loshchilov and Hutter 2019), with weight decay on matrices only."""

    lr: float = option(1e-3, "the peak learning rate; the schedule scales it")
    betas: tuple[float, float] = option((0.9, 0.95), "decay rates of the two moments")
    eps: float = option(1e-8, "added to the root of the second moment")
    weight_decay: float = option(0.1, "decoupled weight decay of matrices")

    def check(self) -> None:
        """Refuse impossible rates."""
        _check_rates(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _check_fractions(beta=self.betas)

    def build(self, model: Model, rates: Mapping[nn.Parameter, float] | None = None) -> Optimizer:
        """One AdamW for all parameters."""
        return Optimizer(model, [self.over([p for p in model.parameters() if p.requires_grad], rates or {})])

    def over(
        self, parameters: list[nn.Parameter], rates: Mapping[nn.Parameter, float] = MappingProxyType({})
    ) -> torch.optim.AdamW:
        """An AdamW for these parameters; those with the same factor of the learning rate are a group."""
        groups = []
        for rate in sorted({rates.get(parameter, 1.0) for parameter in parameters}, reverse=True) or [1.0]:
            own = [parameter for parameter in parameters if rates.get(parameter, 1.0) == rate]
            matrices = [parameter for parameter in own if parameter.ndim >= 2]
            others = [parameter for parameter in own if parameter.ndim < 2]
            groups += [
                {"params": matrices, "weight_decay": self.weight_decay, "lr": self.lr * rate},
                {"params": others, "weight_decay": 0.0, "lr": self.lr * rate},
            ]
        # One kernel for all parameters, on devices that have it.
        fused = all(parameter.device.type in ("cpu", "cuda", "mps") for parameter in parameters)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=fused)


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig, kind="muon"):
    """Muon for the matrices inside the blocks, AdamW for everything else: embeddings, head, norms, biases."""

    lr: float = option(0.02, "Muon's peak learning rate; the schedule scales it")
    momentum: float = option(0.95, "Muon's momentum")
    weight_decay: float = option(0.0, "decoupled weight decay of Muon's matrices")
    split: bool = option(True, "orthogonalize stacked matrices (queries, keys, values) one by one")
    rest_lr: float = option(4e-3, "AdamW's peak learning rate for everything else")
    rest_betas: tuple[float, float] = option((0.9, 0.95), "AdamW's decay rates")
    rest_eps: float = option(1e-8, "AdamW's epsilon")
    rest_weight_decay: float = option(0.0, "AdamW's weight decay of matrices")

    def check(self) -> None:
        """Refuse impossible rates."""
        _check_rates(lr=self.lr, weight_decay=self.weight_decay)
        _check_rates(rest_lr=self.rest_lr, rest_eps=self.rest_eps, rest_weight_decay=self.rest_weight_decay)
        _check_fractions(momentum=(self.momentum,), rest_beta=self.rest_betas)

    def build(self, model: Model, rates: Mapping[nn.Parameter, float] | None = None) -> Optimizer:
        """Muon for the hidden matrices, AdamW for the rest."""
        if rates:
            raise UserError("muon has no rates by layer; use --train.optimizer adamw")
        if not self.split and any(cut.over == "expert" for cut in model.cuts.values()):
            raise UserError(
                "muon with split false orthogonalizes all experts of a layer as one matrix, which --layout.expert "
                "cuts; set --train.optimizer.split true, or --layout.expert 1"
            )
        hidden = set(model.hidden_matrices())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter in hidden]
        rest = [parameter for parameter in trained if parameter not in hidden]
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            stacked, cuts = _stacked(model) if self.split else {}, {}
            if model.cuts:
                from regard.parallel.tensor import cut_matrices

                cuts = cut_matrices(model)
            parts.append(Muon(matrices, self.lr, self.momentum, self.weight_decay, stacked, cuts))
        if rest:
            adamw = AdamWConfig(self.rest_lr, self.rest_betas, self.rest_eps, self.rest_weight_decay)
            parts.append(adamw.over(rest))
        return Optimizer(model, parts)


def _stacked(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """The numbers of rows of the matrices that are stacked in one parameter, by parameter."""
    found: dict[Tensor, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Linear) and len(module.parts) > 1:
            found[module.weight] = module.parts
        elif isinstance(module, nn.RNNBase):  # one matrix per gate
            matrices = (parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 2)
            found |= {matrix: (module.hidden_size,) * (len(matrix) // module.hidden_size) for matrix in matrices}
    return found


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not math.isfinite(rate) or rate < 0:
            raise ValueError(f"{name} must be a number of at least 0, got {rate}")


def _check_fractions(**fractions: tuple[float, ...]) -> None:
    for name, values in fractions.items():
        for value in values:
            if not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {value}")
