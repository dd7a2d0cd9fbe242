"""The ranks of a run, read from the environment, and collective operations. `group` makes the process group.

RANK, WORLD_SIZE and LOCAL_RANK are read from the environment, so torchrun or any other launcher can start it.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed

from regard.errors import UserError
from regard.parallel.layout import DIMENSIONS, Layout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from regard.parallel.group import Watch


ONE = Layout()


class World(NamedTuple):
    """The rank of this process, its place in the layout, and collective operations over all ranks."""

    rank: int = 0
    size: int = 1
    local: int = 0
    device: torch.device = torch.device("cpu")
    layout: Layout = ONE
    watch: "Watch | None" = None  # of several ranks
    mesh: "DeviceMesh | None" = None  # of several ranks: one dimension for each of ``layout.DIMENSIONS``
    experts: "DeviceMesh | None" = None  # with expert parallelism: dimensions expert, tensor and weights (the others)

    def with_mesh(self) -> "World":
        """This world with its mesh. Every rank calls this, once the process group exists."""
        if self.size == 1:
            return self
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        layout, experts = self.layout, None
        mesh = init_device_mesh(self.device.type, layout.sizes, mesh_dim_names=DIMENSIONS)
        if layout.expert > 1:  # those of neighboring parts of the batch
            ranks = torch.arange(self.size).view(-1, layout.expert, layout.context, layout.tensor)
            ranks = ranks.permute(1, 3, 0, 2).flatten(2)
            experts = DeviceMesh(self.device.type, ranks, mesh_dim_names=("expert", "tensor", "weights"))
        return self._replace(mesh=mesh, experts=experts)

    @property
    def part(self) -> int:
        """Which part of each batch is this rank's; the ranks of a context or tensor group have the same."""
        replicate, shard, _, _ = self.layout.coordinates(self.rank)
        return replicate * (self.layout.shard or 1) + shard

    @property
    def parts(self) -> int:
        """The number of parts that each batch is divided into."""
        return self.layout.data

    @property
    def copies(self) -> int:
        """The number of ranks with the same part."""
        return self.size // self.parts

    def lanes(self, count: int | None) -> range:
        """The lanes of this rank: logical ranks, fixed for a run, which decide batches and dropout.

        None: one for each part of the batch.
        """
        count = count or self.parts
        if count % self.parts:
            raise UserError(
                f"the run has {count} lane{'s' * (count != 1)}, which {self.parts} parts of a batch cannot share "
                f"equally; let replicate x shard divide {count} (--processes, --layout)"
            )
        each = count // self.parts
        return range(self.part * each, (self.part + 1) * each)

    def group(self, dimension: str) -> "ProcessGroup | None":
        """The ranks that differ from this one in ``dimension`` only; None if there is no other.

        "expert": those that share its experts.
        """
        if dimension == "expert":
            return self.experts and self.experts.get_group("expert")
        if self.mesh is None or self.layout.sizes[DIMENSIONS.index(dimension)] == 1:
            return None
        return self.mesh.get_group(dimension)

    def sums(self, values: Sequence[float], others: Sequence[float] = ()) -> list[float]:
        """Each of ``values`` summed over the ranks, and each of ``others``, in one collective operation.

        The ranks of a tensor-parallel group compute the same ``values``, so these count once.
        """
        if self.size == 1:
            return [*values, *others]
        if self.watch is not None:
            self.watch.entered += 1
        first = self.layout.coordinates(self.rank)[DIMENSIONS.index("tensor")] == 0
        own = [*(values if first else [0.0] * len(values)), *others]
        total = torch.tensor(own, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.sums([], [float(flag)])[0] > 0

    def broadcast(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        return round(self.sums([], [float(value) if self.rank == 0 else 0.0])[0])

    def barrier(self) -> None:
        """Wait for every rank."""
        self.any(False)


def from_environment(layout: Layout = ONE) -> World:
    """Rank and world size from the environment; one process if they are not set."""
    given = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": os.environ.get("RANK", "0")} | dict(os.environ)
    texts = {name: given[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    for name, text in texts.items():
        if not text.isdigit():
            raise UserError(
                f"the environment variable {name} is {text!r}, not a number; start with torchrun or unset it"
            )
    rank, size, local_rank = map(int, texts.values())
    if rank >= max(1, size):
        raise UserError(f"RANK is {rank}, but WORLD_SIZE is {size}; ranks are counted from 0")
    return World(rank, size, local_rank, layout=layout.of(size))
