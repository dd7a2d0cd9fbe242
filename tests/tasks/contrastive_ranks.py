"""One rank of test_contrastive.py: ``python contrastive_ranks.py SIZE FOLDER``: its rows, the summed loss."""

from __future__ import annotations

from pathlib import Path

from contrastive_kit import batch, model, task
from safetensors.torch import save_file
from torch import distributed

from forked_ranks import fork_ranks
from regard.data import ImageTextBatch
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.tensors import gathered
from regard.parallel.world import World


def main(rank: int, size: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    whole, towers = batch(), model()
    shard(towers, World(rank, size, rank, layout=Layout().of(size)).with_mesh())
    assert whole.tokens is not None
    assert whole.lengths is not None
    parts = (part[rank::size] for part in (whole.inputs, whole.targets, whole.tokens, whole.lengths))
    own = ImageTextBatch(*parts)  # type: ignore[arg-type]
    term = task().terms(towers.train(), own)["contrastive"]
    term.total.backward()
    total = term.total.detach().clone()
    distributed.all_reduce(total)
    gradients = gathered(
        {name: parameter.grad for name, parameter in towers.named_parameters() if parameter.grad is not None}
    )
    if rank == 0:
        save_file({"loss": total, **{name: x.contiguous() for name, x in gradients.items()}}, folder / "found")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
