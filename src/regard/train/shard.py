"""Many processes: who we are among them, sums over all, and FSDP2 on the model.

A training program is plain: it reads RANK, WORLD_SIZE and LOCAL_RANK, so whatever sets these can start it.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from regard.errors import UserError
from regard.models import Model


class World(NamedTuple):
    """This process among all."""

    rank: int = 0
    size: int = 1
    local: int = 0
    device: torch.device = torch.device("cpu")

    def sums(self, values: list[float]) -> list[float]:
        """Each value summed over all ranks."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any rank, so that all do the same."""
        return flag if self.size == 1 else self.sums([float(flag)])[0] > 0

    def first(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        return value if self.size == 1 else round(self.sums([float(value) if self.rank == 0 else 0.0])[0])

    def wait(self) -> None:
        """Until every rank is here."""
        self.any(False)


def from_environment() -> World:
    """Rank and size as the launcher gave them; alone without one."""
    numbers = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", None)):
        text = os.environ.get(name, default if default is not None else os.environ.get("RANK", "0"))
        if not text.isdigit():
            raise UserError(
                f"the environment variable {name} is {text!r}, not a number; start with torchrun or unset it"
            )
        numbers[name] = int(text)
    world = World(numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"])
    if world.rank >= max(1, world.size):
        raise UserError(f"RANK is {world.rank}, but WORLD_SIZE is {world.size}; ranks are counted from 0")
    return world


@contextmanager
def joined(world: World, device: torch.device) -> Iterator[World]:
    """`world` with its process group up, for the time of the context; one that is up already is used and left."""
    world = world._replace(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels of our own are launched on the current one
    if world.size == 1 or distributed.is_initialized():
        yield world
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=world.rank, world_size=world.size)
    try:
        yield world
        world.wait()  # nobody leaves while another still talks
    finally:
        gc.collect()  # sharded models hold the group; one that outlives it may abort the interpreter's exit
        distributed.destroy_process_group()


def shard(model: Model, world: World) -> None:
    """FSDP2 on each block and on the whole model, in place."""
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(world.device.type, (world.size,))
    blocks = list(model.blocks)
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    shared = {parameter for parameter, count in uses.items() if count > 1}  # a table of all layers is the whole's
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params=shared)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Our losses are sums already divided by the count over all ranks: gradients must be added, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other reduction
    for module, method in model.forward_methods():
        register_fsdp_forward_method(module, method)


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors from shards. Every rank must call this, with the same names in the same order."""
    return {name: whole(value) for name, value in tensors.items()}


def whole(value: Any) -> Tensor:
    """All of a tensor, wherever its parts are."""
    return value.full_tensor() if is_sharded(value) else value


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A copy of the whole tensor `value` on the device of `like`, cut as `like` is; the type stays."""
    value = value.to(like.device, copy=True)
    if not is_sharded(like) or value.ndim == 0:
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(value, sharded.device_mesh, sharded.placements)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds only a part of the tensor."""
    return hasattr(tensor, "full_tensor")


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, in shards where it is sharded."""
    reshard = getattr(model, "reshard", None)
    if reshard is not None:
        reshard()  # an evaluation leaves the root's parameters whole, and those are not the ones that are trained
    return model.state_dict()
