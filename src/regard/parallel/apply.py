"""A model spread over the ranks of a layout, by all of its dimensions."""

from importlib import import_module

import torch

from regard.models import Model
from regard.parallel import fsdp
from regard.parallel.world import World


def parallelize(model: Model, world: World, dtype: torch.dtype = torch.float32) -> None:
    """Cut the model for this rank, in place. ``dtype``: of its matrix products.

    Tensor and expert parallelism choose the parameters of a rank, and FSDP shards what they have left.
    """
    cut(model, world)
    fsdp.shard(model, world, dtype)


def cut(model: Model, world: World) -> None:
    """What every dimension but those of FSDP does. Without a mesh nothing communicates; shapes are those of a rank."""
    for dimension in ("tensor", "expert", "context"):
        if getattr(world.layout, dimension) > 1:
            import_module(f"regard.parallel.{dimension}").apply(model, world)
