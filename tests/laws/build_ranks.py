"""One rank of test_recorded_build.py: ``python build_ranks.py SIZE FOLDER MODEL...``, errors in the folder."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

import torch
from live_storages import LiveStorages
from model_kit import MODELS, inputs, loss
from torch import distributed

from forked_ranks import fork_ranks
from regard.errors import UserError
from regard.models import ModelConfig
from regard.parallel.fsdp import shard
from regard.parallel.layout import Layout
from regard.parallel.pieces import pieces
from regard.parallel.sharded_build import fill, named_tensors, recorded
from regard.parallel.tensors import local
from regard.parallel.world import World

#: They also compute a loss.
LOSSES = ("gpt", "gpt performer", "gpt experts", "lstm", "transformer", "detector")
CPU = torch.device("cpu")


def check(config: ModelConfig, world: World, step: bool) -> None:
    """Every shard has the bits of the whole tensor, and this rank held one whole tensor at a time."""
    torch.manual_seed(7)
    with LiveStorages() as building:
        plain = config.build()
    whole = named_tensors(plain)
    besides = building.peak - stored(whole.values())  # what the constructor needs for a while
    torch.manual_seed(7)
    with LiveStorages() as live:
        model, initial = recorded(lambda given: config.build())
        assert not initial.reason, initial.reason
        shard(model, world)
        fill(model, initial, CPU)
        del initial
    own = {name: local(x.detach()) for name, x in named_tensors(model).items()}
    assert own.keys() == whole.keys()
    for name, x in named_tensors(model).items():
        for piece in pieces(x):
            assert torch.equal(own[name][piece.in_local()], whole[name][piece.in_whole()]), name
    largest = max(x.nbytes for x in whole.values())
    assert live.peak <= stored(own.values()) + 1.5 * largest + besides, (live.peak, stored(own.values()), largest)
    if step:
        batch = inputs(plain)
        torch.testing.assert_close(loss(model, batch), loss(plain, batch), rtol=1e-5, atol=1e-5)


def stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their storages."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def main(rank: int, size: int, folder: Path, *names: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    world = World(rank, size, rank, layout=Layout().of(size)).with_mesh()
    for name in names:
        try:
            check(MODELS[name], world, name in LOSSES)
        except UserError:  # a model that cannot be sharded
            continue
        except Exception:  # the same on every rank, so the next model can be tried
            (folder / f"{name}.error").write_text(traceback.format_exc())
    (folder / f"done-{rank}").touch()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
