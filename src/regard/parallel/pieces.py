"""Which parts of a whole tensor a rank holds, whatever made it a shard: FSDP, tensor or expert parallelism, or both.

Building a model shard by shard, checkpoints and the gradient norm need this and nothing else of a layout.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.parallel.tensors import is_sharded, local


class Cut(NamedTuple):
    """The rows, or other slices along ``dim``, of a whole tensor that a rank's tensor is made of, in order.

    ``Model.cuts`` has one for each parameter that tensor or expert parallelism has cut, by the parameter's name.
    """

    shape: tuple[int, ...]  # of the whole tensor
    dim: int
    ranges: tuple[tuple[int, int], ...]  # start and end in the whole tensor; several for stacked matrices
    over: str  # "tensor" or "expert": the ranks that hold the other slices
    repeated: int = 0  # so many ranges, the last ones, are on all of these ranks

    def of(self, whole: Tensor) -> Tensor:
        """This rank's tensor, a copy."""
        return torch.cat([whole.narrow(self.dim, start, end - start) for start, end in self.ranges], self.dim)


class Piece(NamedTuple):
    """A box of a whole tensor, and where it lies in a rank's tensor."""

    shape: tuple[int, ...]
    whole: tuple[int, ...]  # its first element in the whole tensor
    local: tuple[int, ...]  # and in the rank's

    def in_whole(self) -> tuple[slice, ...]:
        """Its place in the whole tensor."""
        return _box(self.whole, self.shape)

    def in_local(self) -> tuple[slice, ...]:
        """Its place in the rank's tensor."""
        return _box(self.local, self.shape)


def whole_shape(tensor: Tensor, cut: Cut | None = None) -> tuple[int, ...]:
    """The shape of the whole tensor of which ``tensor`` is a shard."""
    return tuple(tensor.shape) if cut is None else cut.shape  # that of a DTensor is the shape before FSDP


def pieces(tensor: Tensor, cut: Cut | None = None) -> Iterator[Piece]:
    """What this rank holds of a whole tensor: ``tensor`` may be a DTensor, and cut before that."""
    shape, start = tuple(tensor.shape), (0,) * tensor.ndim
    if is_sharded(tensor):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        found, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        shape, start = tuple(found), tuple(first)
    if 0 in shape:
        return
    if cut is None:
        yield Piece(shape, start, (0,) * len(shape))
        return
    dim, before = cut.dim, 0  # slices of the ranges so far, which are those before FSDP
    low, high = start[dim], start[dim] + shape[dim]
    for first, end in cut.ranges:
        begin, stop = max(low, before), min(high, before + end - first)
        if begin < stop:
            yield Piece(
                _put(shape, dim, stop - begin),
                _put(start, dim, first + begin - before),
                _put((0,) * len(shape), dim, begin - low),
            )
        before += end - first


class Sliced(Protocol):
    """A whole tensor, or one in a file, of which boxes can be taken."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, box: tuple[slice, ...], /) -> Tensor: ...


@torch.no_grad()
def fill(tensor: Tensor, whole: Sliced, cut: Cut | None = None) -> None:
    """Copy into a rank's ``tensor`` its boxes of the whole one, one after another."""
    for piece in pieces(tensor, cut):
        local(tensor)[piece.in_local()].copy_(whole[piece.in_whole()])


def _put(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])


def _box(start: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
