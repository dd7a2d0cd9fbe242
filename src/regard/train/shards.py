"""Saving by several ranks: each writes pieces of the model and the optimizer, and nothing is gathered.

What several ranks hold, as replicas and tensor groups do, one of them writes.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from regard.errors import UserError
from regard.parallel.exchange import Exchange, together
from regard.parallel.pieces import Cut, pieces, whole_shape
from regard.parallel.tensors import local
from regard.runs import Run, checkpoint
from regard.runs.disk import JsonObject, writing
from regard.runs.shards import KINDS, Box, ShardMap, SplitTensor, file_name, piece_name
from regard.runs.tensors import DTYPES, dtype_name, write_pieces

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
    return {
        kind: {
            name: Listed(
                dtype_name(name, tensor),
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


class Shards(NamedTuple):
    """What one rank writes of a checkpoint."""

    split: ShardMap
    rank: int
    pieces: Kinds  # by kind and by their names in the files


def own_pieces(split: ShardMap, rank: int, tensors: Kinds, cuts: Mapping[str, Mapping[str, Cut]]) -> Shards:
    """What ``rank`` writes: views of its tensors."""
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for name, tensor in tensors[kind].items():
            mine = {(box.start, box.shape) for box in split.tensors[kind][name].boxes if box.rank == rank}
            for piece in pieces(tensor, cuts[kind].get(name)):
                if (piece.whole, piece.shape) in mine:
                    found[kind][piece_name(name, piece.whole)] = local(tensor.detach())[piece.in_local()]
    return Shards(split, rank, found)


def write_shards(
    run: Run,
    step: int,
    shards: Shards,
    exchange: Exchange,
    state: Mapping[str, object],
    keep: int = 2,
    pinned: Collection[int] = (),
) -> None:
    """Write a checkpoint. Every rank calls this: it writes its files, and rank 0 begins and finishes the checkpoint.

    If a rank fails, the checkpoint does not exist and all ranks raise an error. Otherwise as ``Run.save``.
    """
    what, first = f"the checkpoint of step {step} in {run.path}", shards.rank == 0

    def begin() -> str:
        with writing(what):
            return checkpoint.begin(run.file("checkpoints"), step).name

    def finish(folder: Path) -> None:
        files = {name: entry for written in entries for name, entry in written.items()}
        with run.saving(step, keep, pinned):
            checkpoint.finish(folder, step, {"schema": 2, "files": files, **shards.split.render()}, state)

    name = together(exchange, lambda: begin() if first else "")[0]
    folder = run.file("checkpoints") / name
    try:
        entries = together(exchange, lambda: _write(shards, folder, what))
        together(exchange, lambda: finish(folder) if first else None)
    except BaseException:
        if first:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(shards: Shards, folder: Path, what: str) -> JsonObject:
    """Write this rank's files; return their entries in the manifest."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not there; give every rank the same folder of runs, on a shared file system")
    entries = {}
    with writing(what):
        for kind in KINDS:
            name = file_name(kind, shards.rank, shards.split.ranks)
            entries[name] = write_pieces(folder / name, shards.pieces[kind])
    return entries
