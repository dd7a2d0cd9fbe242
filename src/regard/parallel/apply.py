"""A model spread over the ranks of a layout, by all of its dimensions."""

from importlib import import_module

import torch

from regard.attention import ModuleProperties
from regard.errors import UserError
from regard.models import Model
from regard.parallel import fsdp
from regard.parallel.world import World


def parallelize(model: Model, world: World, dtype: torch.dtype = torch.float32) -> None:
    """Cut the model for this rank, in place. ``dtype``: of its matrix products.

    Tensor and expert parallelism choose the parameters of a rank, and FSDP shards what they have left.
    """
    if world.size > 1:
        _check_updates(model)
    cut(model, world)
    fsdp.shard(model, world, dtype)


def cut(model: Model, world: World) -> None:
    """What every dimension but those of FSDP does. Without a mesh nothing communicates; shapes are those of a rank."""
    for dimension in ("tensor", "expert", "context"):
        if getattr(world.layout, dimension) > 1:
            import_module(f"regard.parallel.{dimension}").apply(model, world)


def _check_updates(model: Model) -> None:
    """Refuse layers that write to their weights what they see, as each process sees another part of the batch."""
    for name, module in model.named_modules():
        if isinstance(module, ModuleProperties) and module.self_updating:
            raise UserError(
                f"{name}, a {type(module).__name__}, changes its weights by the part of a batch that a process sees, "
                "so they would differ between processes; train this model with one process"
            )
