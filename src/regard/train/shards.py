"""Saving by several ranks: each writes pieces of the model and the optimizer, and nothing is gathered.

What several ranks hold, as replicas and tensor groups do, one of them writes.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from regard.errors import UserError
from regard.parallel.exchange import Exchange, together
from regard.parallel.pieces import Cut, pieces, whole_shape
from regard.parallel.tensors import local
from regard.runs.disk import JsonObject, writing
from regard.runs.shards import KINDS, Box, ShardMap, SplitTensor, file_name, piece_name
from regard.runs.tensors import DTYPES, write_pieces

#: Named tensors by kind: "model", "optimizer".
Kinds = Mapping[str, Mapping[str, Tensor]]


class Listed(NamedTuple):
    """What a rank holds of a tensor."""

    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # start and shape in the whole tensor


Lists = dict[str, dict[str, Listed]]  # by kind and name


def listed(tensors: Kinds, cuts: Mapping[str, Mapping[str, Cut]]) -> Lists:
    """What this rank holds."""
    names = {f"torch.{own}": name for name, (own, _) in DTYPES.items()}
    return {
        kind: {
            name: Listed(
                names[str(tensor.dtype)],
                whole_shape(tensor, cut := cuts[kind].get(name)),
                tuple((piece.whole, piece.shape) for piece in pieces(tensor, cut)),
            )
            for name, tensor in tensors[kind].items()
        }
        for kind in KINDS
    }


def assign(every: Sequence[Lists], shared: Mapping[str, Mapping[str, str]]) -> ShardMap:
    """Which rank writes which box, from what each of them holds: the ranks write about the same number of bytes."""
    load = [0] * len(every)
    boxes: dict[tuple[str, str], list[Box]] = {(kind, name): [] for kind in KINDS for name in every[0][kind]}
    holders: dict[tuple[str, str, tuple, tuple], list[int]] = {}
    for rank, lists in enumerate(every):
        for kind in KINDS:
            for name, one in lists[kind].items():
                if (kind, name) not in boxes or one[:2] != every[0][kind][name][:2]:
                    raise ValueError(f"{name!r} is another tensor on rank 0 than on rank {rank}")
                for start, shape in one.boxes:
                    holders.setdefault((kind, name, start, shape), []).append(rank)

    def size(item: tuple[tuple[str, str, tuple, tuple], list[int]]) -> int:
        (kind, name, _, shape), _ = item
        return prod(shape) * DTYPES[every[0][kind][name].dtype][1]

    # First what only one rank can write, then the largest of what several can.
    for item in sorted(holders.items(), key=lambda item: (len(item[1]) > 1, -size(item), item[0])):
        (kind, name, start, shape), ranks = item
        writer = min(ranks, key=lambda rank: (load[rank], rank))
        load[writer] += size(item)
        boxes[kind, name].append(Box(writer, start, shape))
    split = {
        kind: {
            name: SplitTensor(one.dtype, one.shape, tuple(boxes[kind, name])) for name, one in every[0][kind].items()
        }
        for kind in KINDS
    }
    found = ShardMap(len(every), split, shared)
    found.check()
    return found


def own_pieces(
    split: ShardMap, rank: int, tensors: Kinds, cuts: Mapping[str, Mapping[str, Cut]]
) -> dict[str, dict[str, Tensor]]:
    """The pieces that ``rank`` writes, by kind and by their names in its files: views of its tensors."""
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for name, tensor in tensors[kind].items():
            mine = {(box.start, box.shape) for box in split.tensors[kind][name].boxes if box.rank == rank}
            for piece in pieces(tensor, cuts[kind].get(name)):
                if (piece.whole, piece.shape) in mine:
                    found[kind][piece_name(name, piece.whole)] = local(tensor.detach())[piece.in_local()]
    return found


def write_shards(
    split: ShardMap,
    rank: int,
    own: Kinds,
    exchange: Exchange,
    begin: Callable[[], Path],
    finish: Callable[[Path, JsonObject], object],
    what: str,
) -> None:
    """Write a checkpoint. Every rank calls this: it writes its files, and rank 0 begins and finishes the checkpoint.

    ``begin`` makes the folder; ``finish`` gets it and the manifest. If a rank fails, the checkpoint does not exist and
    all ranks raise an error.
    """
    folder, *_ = together(exchange, lambda: begin() if rank == 0 else None)
    assert folder is not None
    try:
        entries = together(exchange, lambda: _write(split, rank, own, folder, what))
        files = {name: entry for written in entries for name, entry in written.items()}
        manifest = {"schema": 2, "files": files, **split.render()}
        together(exchange, lambda: finish(folder, manifest) and None if rank == 0 else None)
    except BaseException:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(split: ShardMap, rank: int, own: Kinds, folder: Path, what: str) -> JsonObject:
    """Write this rank's files; return their entries in the manifest."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not there; give every rank the same folder of runs, on a shared file system")
    entries = {}
    with writing(what):
        for kind in KINDS:
            name = file_name(kind, rank, split.ranks)
            entries[name] = write_pieces(folder / name, own[kind])
    return entries
