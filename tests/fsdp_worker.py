"""The ranks of the sharded runs of test_contract.py: ``python fsdp_worker.py SIZE FOLDER``.

Each rank sees its own rows only and writes their logits; rank 0 also writes the loss summed over the ranks and whole
gradients. Losses are sums, so gradients must be added up over ranks, where FSDP2 by itself would average them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from contract_model import BATCHES, TOLERANCE, Outcome, outcome, part, small_gpt
from forked_ranks import fork_ranks
from regard.attention import AnySlots
from regard.models.gpt import GPT

# How a rank calls its model: as a whole, by its two halves as a training task does, and with activation checkpointing.
WAYS = ("whole", "halves", "checkpointing")


def shard(model: GPT, size: int) -> GPT:
    """FSDP2 on each block and on the rest; gradients are summed over the ranks."""
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "features")
    register_fsdp_forward_method(model, "head")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot average or scale while it reduces
    return model


def run(way: str, dtype: torch.dtype, kind: str, rank: int, size: int) -> Outcome:
    """One batch, one fresh model, one backward pass."""
    model = shard(small_gpt(dtype), size)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    model.checkpointing = way == "checkpointing"

    def halves(tokens: Tensor, slots: AnySlots | None) -> Tensor:
        return model.head(model.features(tokens, slots))

    result = outcome(model, part(BATCHES[kind](), rank, size), halves if way == "halves" else None)
    distributed.all_reduce(result.loss)
    whole = {
        name: gradient.full_tensor() for name, gradient in result.gradients.items() if isinstance(gradient, DTensor)
    }
    return result._replace(gradients=whole)


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    for dtype in TOLERANCE:
        for kind, way in [(kind, "whole") for kind in BATCHES] + [("padded", way) for way in WAYS[1:]]:
            logits, loss, gradients = run(way, dtype, kind, rank, size)
            name = f"{kind}-{way}-{dtype}"
            save_file({f"{i:03}": one.contiguous() for i, one in enumerate(logits)}, folder / f"{name}-rank{rank}")
            if rank == 0:
                save_file({"loss": loss, **gradients}, folder / name)
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
