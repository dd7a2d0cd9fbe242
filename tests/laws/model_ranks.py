"""One rank of the sharded runs of test_models.py: ``python model_ranks.py RANK SIZE FOLDER``.

Rank r computes the gradients of its rows of every model's batch; rank 0 writes the whole gradients or the refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import torch
from model_kit import MODELS, Inputs, build, gradients, inputs
from safetensors.torch import save_file
from torch import distributed

from regard.errors import UserError
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.tensors import gathered
from regard.parallel.world import World


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
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


def run_ranks(size: int, folder: Path, program: str = __file__, *arguments: str) -> None:
    """Run every rank in its own process: ``program RANK SIZE FOLDER`` and the arguments."""
    commands = [[sys.executable, program, str(rank), str(size), str(folder), *arguments] for rank in range(size)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=600)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(errors)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    # DTensor's caches keep the process group past its destruction, which may abort the interpreter's exit
    # (pytorch/pytorch#190489). Everything is written by now.
    os._exit(0)
