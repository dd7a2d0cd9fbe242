"""Training on several processes: ranks, reductions over them, and FSDP2. The process group is made in `group`.

RANK, WORLD_SIZE and LOCAL_RANK are read from the environment, so torchrun or any other launcher can start it.
"""

import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import torch
from torch import Tensor, distributed

from regard.errors import UserError
from regard.models import Model

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from regard.train.group import Watch


class World(NamedTuple):
    """The rank of this process, and collective operations."""

    rank: int = 0
    size: int = 1
    local: int = 0
    device: torch.device = torch.device("cpu")
    watch: "Watch | None" = None  # of several ranks

    def sums(self, values: list[float]) -> list[float]:
        """Each value summed over all ranks."""
        if self.size == 1:
            return values
        if self.watch is not None:
            self.watch.entered += 1
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return flag if self.size == 1 else self.sums([float(flag)])[0] > 0

    def broadcast(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        return value if self.size == 1 else round(self.sums([float(value) if self.rank == 0 else 0.0])[0])

    def barrier(self) -> None:
        """Wait for every rank."""
        self.any(False)


def from_environment() -> World:
    """Rank and world size from the environment; one process if they are not set."""
    given = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": os.environ.get("RANK", "0")} | dict(os.environ)
    texts = {name: given[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    for name, text in texts.items():
        if not text.isdigit():
            raise UserError(
                f"the environment variable {name} is {text!r}, not a number; start with torchrun or unset it"
            )
    rank, size, local_rank = map(int, texts.values())
    world = World(rank, size, local_rank)
    if world.rank >= max(1, world.size):
        raise UserError(f"RANK is {world.rank}, but WORLD_SIZE is {world.size}; ranks are counted from 0")
    return world


def shard(model: Model, world: World) -> None:
    """FSDP2 on each block and on the whole model, in place."""
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(world.device.type, (world.size,))
    blocks = list(model.blocks)
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    shared = {parameter for parameter, count in uses.items() if count > 1}  # they belong to the root
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params=shared)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are already divided by the count over all ranks: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the only reduction of gloo
    for module, method in model.forward_methods():
        register_fsdp_forward_method(module, method)


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors from their shards. Every rank calls this with the same names in the same order."""
    return {name: whole(value) for name, value in tensors.items()}


def whole(value: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks if it is sharded."""
    return value.full_tensor() if is_sharded(value) else value


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A copy of the whole tensor ``value`` on the device of ``like``, sharded like it; the dtype stays."""
    value = value.to(like.device, copy=True)
    if value.ndim == 0 or not is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements)


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
