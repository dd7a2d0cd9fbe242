"""Optimizers: which rule moves which parameter, and one small wrapper that the loop and the checkpoint speak to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.config import Choice, option
from regard.models import Model
from regard.train.muon import Muon
from regard.train.shard import placed


class Optimizer:
    """One or more torch optimizers as one, with a state of flat names that a tensor file can hold."""

    def __init__(self, model: nn.Module, parts: Sequence[torch.optim.Optimizer]):
        self.parts = tuple(parts)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.parameters = [p for part in self.parts for group in part.param_groups for p in group["params"]]
        for part in self.parts:
            for group in part.param_groups:
                group["highest"] = group["lr"]

    def step(self, factor: float) -> None:
        """One update with every learning rate times `factor`."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["highest"] * factor
            part.step()

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def rates(self, factor: float) -> list[float]:
        """The learning rates at `factor`, the first one being the headline."""
        return [group["highest"] * factor for part in self.parts for group in part.param_groups]

    def state(self) -> dict[str, Tensor]:
        """Everything the next update depends on, as `<parameter>/<what>`; the tensors are the live ones."""
        return {
            f"{self.names[parameter]}/{what}": value
            for part in self.parts
            for parameter, values in part.state.items()
            for what, value in values.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`, exactly: each tensor keeps its type, and goes to its parameter's device.

        A sharded parameter takes its own part of each whole tensor.
        """
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {parameter: part for part in self.parts for g in part.param_groups for parameter in g["params"]}
        for part in self.parts:
            part.state.clear()
        for key, value in state.items():
            name, _, what = key.rpartition("/")
            parameter = parameters.get(name)
            if parameter is None or parameter not in owners:
                raise ValueError(f"the optimizer state has {key!r}, but the model has no trained parameter {name!r}")
            owners[parameter].state[parameter][what] = placed(value, parameter)


class OptimizerConfig(Choice):
    """The choice of an optimizer."""

    lr: float  # the highest learning rate; the schedule multiplies it

    def build(self, model: Model) -> Optimizer:
        """An optimizer for all parameters of `model` that take gradients."""
        raise NotImplementedError


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig, kind="adamw"):
    """AdamW (Loshchilov and Hutter 2019), with weight decay on matrices only."""

    lr: float = option(1e-3, "the highest learning rate; the schedule multiplies it")
    betas: tuple[float, float] = option((0.9, 0.95), "decay rates of the two moments")
    eps: float = option(1e-8, "added to the root of the second moment")
    weight_decay: float = option(0.1, "decoupled weight decay of matrices")

    def check(self) -> None:
        """Refuse impossible rates."""
        _check_rates(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _check_shares(beta=self.betas)

    def build(self, model: Model) -> Optimizer:
        """One AdamW over everything."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return Optimizer(model, [_adamw(parameters, self.lr, self.betas, self.eps, self.weight_decay)])


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig, kind="muon"):
    """Muon for the matrices inside the blocks, AdamW for everything else: embeddings, head, norms, biases."""

    lr: float = option(0.02, "Muon's highest learning rate; the schedule multiplies it")
    momentum: float = option(0.95, "Muon's momentum")
    weight_decay: float = option(0.0, "decoupled weight decay of Muon's matrices")
    split: bool = option(True, "orthogonalise matrices that a layer keeps stacked (its `parts`) each by itself")
    rest_lr: float = option(4e-3, "AdamW's highest learning rate for everything else")
    rest_betas: tuple[float, float] = option((0.9, 0.95), "AdamW's decay rates")
    rest_eps: float = option(1e-8, "AdamW's epsilon")
    rest_weight_decay: float = option(0.0, "AdamW's weight decay of matrices")

    def check(self) -> None:
        """Refuse impossible rates."""
        _check_rates(lr=self.lr, weight_decay=self.weight_decay)
        _check_rates(rest_lr=self.rest_lr, rest_eps=self.rest_eps, rest_weight_decay=self.rest_weight_decay)
        _check_shares(momentum=(self.momentum,), rest_beta=self.rest_betas)

    def build(self, model: Model) -> Optimizer:
        """Muon and AdamW side by side."""
        hidden = set(model.hidden_matrices())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter in hidden]
        rest = [parameter for parameter in trained if parameter not in hidden]
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            stacked = _stacked(model) if self.split else {}
            parts.append(Muon(matrices, self.lr, self.momentum, self.weight_decay, stacked))
        if rest:
            parts.append(_adamw(rest, self.rest_lr, self.rest_betas, self.rest_eps, self.rest_weight_decay))
        return Optimizer(model, parts)


def _stacked(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Of every parameter in which a layer keeps several matrices, how many rows each of them has."""
    found: dict[Tensor, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear) and getattr(module, "parts", ()):
            found[module.weight] = module.parts  # type: ignore[assignment]
        elif isinstance(module, nn.RNNBase):  # the gates of a recurrent layer
            matrices = (parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 2)
            found |= {matrix: (module.hidden_size,) * (len(matrix) // module.hidden_size) for matrix in matrices}
    return found


def _adamw(
    parameters: list[nn.Parameter], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, weight_decay), (others, 0.0))
        if members
    ]
    # One kernel for all parameters where the device has it.
    fused = all(parameter.device.type in ("cpu", "cuda", "mps") for parameter in parameters)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not math.isfinite(rate) or rate < 0:
            raise ValueError(f"{name} must be a number of at least 0, got {rate}")


def _check_shares(**shares: tuple[float, ...]) -> None:
    for name, values in shares.items():
        for value in values:
            if not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {value}")
