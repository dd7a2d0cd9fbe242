"""Fully sharded data parallelism by PyTorch's FSDP2 (Zhao et al. 2023; Rajbhandari et al. 2020).

Weights are sharded over the ranks that differ in ``shard`` or ``context``, which need the same ones and add their
gradients up. With ``replicate`` there are several such groups (HSDP), and the gradients are added over them too.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, cast

import torch

from regard.models import Model
from regard.parallel.expert import expert_parameters
from regard.parallel.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

#: The share of the free memory that gradients may take which are not sharded; activations need the other.
GRADIENT_SHARE = 0.5


def shard(model: Model, world: World, dtype: torch.dtype = torch.float32) -> None:
    """FSDP2 on each block and on the whole model, in place; ``dtype``: of matrix products."""
    if world.mesh is None:
        return
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = weight_mesh(world)
    # Matrix products round their weights to bfloat16 anyway, so the blocks' weights travel in it. The rest of a model,
    # such as embeddings, which are added up in float32, stays as it is. Gradients are added up in float32.
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    halved = dtype == torch.bfloat16 and world.device.type == "cuda"
    policy = half if halved else MixedPrecisionPolicy()
    blocks = list(model.blocks)
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    shared = {parameter for parameter, count in uses.items() if count > 1}  # they belong to the root
    by_mixture = expert_parameters(model)
    experts = {parameter for own in by_mixture.values() for parameter in own}
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params=shared | experts, mp_policy=policy)
    for mixture, own in by_mixture.items():  # after the blocks, which have the routers
        assert world.experts is not None
        others = set(mixture.parameters()) - own
        fully_shard(mixture, mesh=world.experts["weights"], ignored_params=others, mp_policy=policy)
    fully_shard(model, mesh=mesh, ignored_params=experts)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are already divided by the count over all ranks: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the only reduction of gloo
    for module, method in model.forward_methods():
        register_fsdp_forward_method(module, method)


def weight_mesh(world: World) -> DeviceMesh:
    """The ranks that share the weights, in one dimension, or in two with ``replicate``."""
    assert world.mesh is not None
    inner = world.mesh["shard", "context"]._flatten("weights") if world.layout.context > 1 else world.mesh["shard"]
    if world.layout.replicate == 1:
        return inner
    return world.mesh["replicate", "weights" if world.layout.context > 1 else "shard"]


def free_memory(device: torch.device) -> int | None:
    """The bytes that are free on a GPU; None elsewhere, where memory is larger than the GPUs' of a machine."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


class GradientSync:
    """When the gradients of an update are added up over the ranks: once, in its last micro-batch, if they fit.

    Until then each rank holds the gradients of its micro-batches whole; if memory is short, they are reduced, and so
    sharded, after each of them.
    """

    def __init__(self, model: Model, world: World, micro_batches: int):
        self._last = micro_batches - 1
        self._module = None
        if world.mesh is None or not self._last:
            return
        needed = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        free = free_memory(world.device)
        if not world.any(free is not None and needed > GRADIENT_SHARE * free):
            self._module = cast("FSDPModule", model)
        elif world.rank == 0:
            print(
                f"regard: whole gradients ({needed / 2**30:.3g} GiB) do not fit beside the activations, so each of the "
                f"{micro_batches} micro-batches of a step reduces them; --data.batch and fewer lanes would save that",
                file=sys.stderr,
                flush=True,
            )

    def micro_batch(self, number: int) -> None:
        """Prepare micro-batch ``number`` of an update, counted from 0."""
        if self._module is not None:
            self._module.set_requires_gradient_sync(number == self._last)
            self._module.set_is_last_backward(number == self._last)
