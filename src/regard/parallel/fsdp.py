"""Fully sharded data parallelism by PyTorch's FSDP2 (Zhao et al. 2023; Rajbhandari et al. 2020)."""

from collections import Counter

from regard.models import Model
from regard.parallel.expert import expert_parameters
from regard.parallel.world import World


def shard(model: Model, world: World) -> None:
    """FSDP2 on each block and on the whole model, in place."""
    if world.size == 1:
        return
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    assert world.mesh is not None
    mesh = world.mesh["shard"]
    blocks = list(model.blocks)
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    shared = {parameter for parameter, count in uses.items() if count > 1}  # they belong to the root
    experts = expert_parameters(model)
    shared |= set().union(*experts.values())
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params=shared)
    if world.experts is not None and world.experts["weights"].size() > 1:
        for mixture, own in experts.items():  # after their blocks, which keep the routers
            others = set(mixture.parameters()) - own
            fully_shard(mixture, mesh=world.experts["weights"], ignored_params=others)
    fully_shard(model, mesh=mesh, ignored_params=shared)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are already divided by the count over all ranks: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the only reduction of gloo
    for module, method in model.forward_methods():
        register_fsdp_forward_method(module, method)
