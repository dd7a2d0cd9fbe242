"""The ranks of the sharded runs of test_models.py: ``python model_ranks.py SIZE FOLDER``.

Rank r computes the gradients of its rows of every model's batch; rank 0 writes the whole gradients or the refusal.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from model_kit import MODELS, Inputs, build, gradients, inputs
from safetensors.torch import save_file
from torch import distributed

from forked_ranks import fork_ranks
from regard.errors import UserError
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.tensors import gathered
from regard.parallel.world import World


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    world = World(rank, size, rank, layout=Layout().of(size)).with_mesh()
    for name in MODELS:
        model = build(name)
        batch = inputs(model)
        own = Inputs(tuple(x[rank::size] for x in batch.arguments), batch.targets[rank::size])
        try:
            shard(model, world)
            whole = gathered(gradients(model, own))
        except UserError as refusal:
            if rank == 0:
                (folder / f"{name}.refusal").write_text(str(refusal))
            continue
        except Exception:  # the same on every rank, so the next model can be tried
            (folder / f"{name}.error").write_text(traceback.format_exc())
            continue
        if rank == 0:
            save_file({key: value.contiguous() for key, value in whole.items()}, folder / f"{name}.safetensors")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
