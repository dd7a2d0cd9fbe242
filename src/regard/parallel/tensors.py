"""Sharded tensors: DTensors beside plain ones, which are whole on every rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

from regard.models import Model

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors from their shards. Every rank calls this with the same names in the same order."""
    return {name: whole(value) for name, value in tensors.items()}


def whole(value: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks if it is sharded."""
    return value.full_tensor() if is_sharded(value) else value


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this process holds only a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This process's shard of the tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def weights(model: Model) -> dict[str, Tensor]:
    """The model's state; sharded tensors stay sharded."""
    if any(is_sharded(parameter) for parameter in model.parameters()):
        # After an evaluation the root's parameters are gathered copies, which are not trained.
        model.reshard()  # type: ignore[operator]
    return model.state_dict()
