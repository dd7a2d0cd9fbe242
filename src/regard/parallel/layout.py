"""How the ranks of a run share its work. A layout is not part of the experiment: `regard resume` may choose another.

Every rank has a coordinate in each dimension, in the order of ``DIMENSIONS``; the last one varies fastest, so that the
ranks of a tensor-parallel group are neighbors on a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from regard.config import Config, option
from regard.errors import UserError

DIMENSIONS = ("replicate", "shard", "context", "tensor")


@dataclass(frozen=True)
class Layout(Config):
    """Ranks by dimension; their product is the number of ranks."""

    replicate: int = option(
        1, "groups of ranks with a copy of the weights each (HSDP); the groups share the batch", least=1
    )
    shard: int | None = option(
        None,
        "ranks that share the batch and hold a shard of the weights each (FSDP); default: all left",
        least=1,
    )
    context: int = option(1, "ranks that share the tokens of each row (ring attention)", least=1)
    tensor: int = option(1, "ranks that share the heads and hidden units of each layer (tensor parallelism)", least=1)
    expert: int = option(1, "of the ranks that share the batch: how many share the experts of a layer", least=1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of ranks in each of ``DIMENSIONS``."""
        return self.replicate, self.shard or 1, self.context, self.tensor

    @property
    def data(self) -> int:
        """The number of parts that the batch is divided into."""
        return self.replicate * (self.shard or 1)

    def of(self, ranks: int) -> Layout:
        """This layout with ``shard`` filled in for ``ranks`` ranks; one that does not fit them is refused."""
        try:
            self.check()
        except ValueError as problem:
            raise UserError(f"--layout.{problem}") from problem
        others = self.replicate * self.context * self.tensor
        shard = self.shard or max(1, ranks // others)
        full = replace(self, shard=shard)
        if prod(full.sizes) != ranks:
            parts = " x ".join(f"{name} {size}" for name, size in zip(DIMENSIONS, full.sizes, strict=True))
            processes = f"{ranks} process{'es' * (ranks != 1)}"
            needed = prod(full.sizes)
            raise UserError(f"the layout {parts} needs {needed} processes, but this is {processes}; change --layout")
        if full.data % full.expert:
            raise UserError(
                f"--layout.expert {full.expert} does not divide the {full.data} ranks that share the batch "
                "(replicate x shard); choose a divisor"
            )
        return full

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The place of a rank in each of ``DIMENSIONS``.

        >>> Layout(shard=2, tensor=2).coordinates(3)
        (0, 1, 0, 1)
        """
        found: list[int] = []
        for size in reversed(self.sizes):
            rank, place = divmod(rank, size)
            found.insert(0, place)
        return tuple(found)
