"""The tensor-parallel ranks of test_tensor_models.py: ``python tensor_ranks.py SIZE FOLDER TENSOR NAME...``.

The ranks of a group compute outputs and gradients of the same rows. ``SIZE / TENSOR`` groups share the batch, by FSDP.
Every rank writes what it holds of them, with the cuts, or the refusal.
"""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path

import torch
from model_kit import Inputs, gradients, inputs, randomized
from tensor_kit import CASES
from torch import distributed

from forked_ranks import fork_ranks
from regard.errors import UserError
from regard.parallel import tensor
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.norm import own_norm
from regard.parallel.tensors import gathered
from regard.parallel.world import World


def main(rank: int, size: int, folder: Path, ranks: str, *names: str) -> None:
    warnings.simplefilter("error")
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    world = World(rank, size, rank, layout=Layout(tensor=int(ranks)).of(size)).with_mesh()
    for name in names:
        model = randomized(CASES[name])
        batch = inputs(model)
        own = Inputs(
            tuple(x[world.part :: world.parts] for x in batch.arguments), batch.targets[world.part :: world.parts]
        )
        try:
            tensor.apply(model, world)
            with torch.no_grad():
                output = model.eval()(*own.arguments)
            if world.parts > 1:
                shard(model, world)
            found = gradients(model, own)
            norm = own_norm(found, model.cuts, world).double().square()
            distributed.all_reduce(norm)
            result = {"output": output, "gradients": gathered(found), "norm": norm.sqrt(), "cuts": model.cuts}
        except UserError as refusal:
            result = {"refusal": str(refusal)}
        except Exception:  # the same on every rank, so the next model can be tried
            result = {"error": traceback.format_exc()}
        torch.save(result, folder / f"{name}-{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
