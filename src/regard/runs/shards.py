"""The second schema of checkpoints: every rank writes the pieces of tensors that it holds into files of its own.

    model-00001-of-00004.safetensors optimizer-00001-of-00004.safetensors ... state.json MANIFEST.json

The manifest says which boxes of each whole tensor are in which rank's files. Together they are the whole tensor, each
element once, so that any number of ranks can read it again.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from regard.config.notation import JsonObject
from regard.runs.tensors import DTYPES, SHARED, FileTensor, StoredPiece, TensorFiles

KINDS = MODEL, OPTIMIZER = "model", "optimizer"
MOST_RANKS, MOST_DIMENSIONS = 99_999, 16
#: How often boxes are divided in a tensor; sharding, tensor and expert parallelism and stacked matrices need one each.
DEEPEST = 16


class Box(NamedTuple):
    """A box of a whole tensor, in the files of one rank."""

    rank: int
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def end(self) -> tuple[int, ...]:
        """After its last element."""
        return tuple(first + size for first, size in zip(self.start, self.shape, strict=True))


class SplitTensor(NamedTuple):
    """A whole tensor, and the boxes that it is stored in."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


class ShardMap(NamedTuple):
    """Where everything is in a checkpoint of the second schema."""

    ranks: int
    tensors: Mapping[str, Mapping[str, SplitTensor]]  # by kind and name
    shared: Mapping[str, Mapping[str, str]]  # by kind, from each tied name to the one that is stored

    def render(self) -> JsonObject:
        """Its part of the manifest."""
        tensors = {
            kind: {
                name: {"dtype": one.dtype, "shape": one.shape, "pieces": [list(box) for box in one.boxes]}
                for name, one in split.items()
            }
            for kind, split in self.tensors.items()
        }
        return {"ranks": self.ranks, "tensors": tensors, SHARED: self.shared}

    def files(self) -> list[str]:
        """The names of all tensor files."""
        return [file_name(kind, rank, self.ranks) for kind in KINDS for rank in range(self.ranks)]

    def stored(self, kind: str, files: TensorFiles) -> dict[str, FileTensor]:
        """The tensors of one kind, under all their names; tied ones are one object."""
        found = {}
        for name, one in self.tensors[kind].items():
            places = [
                StoredPiece(file_name(kind, box.rank, self.ranks), piece_name(name, box.start), box.start, box.shape)
                for box in one.boxes
            ]
            found[name] = FileTensor(one.shape, one.dtype, tuple(places), files)
        return found | {other: found[name] for other, name in self.shared[kind].items()}

    def check(self) -> None:
        """Raise a ``ValueError`` if the boxes of a tensor are not the whole tensor, each element once."""
        for split in self.tensors.values():
            for name, one in split.items():
                if not is_divided(one.boxes, (0,) * len(one.shape), one.shape):
                    raise ValueError(f"the pieces of {name!r} overlap, or some are missing")

    def sizes(self) -> dict[str, int]:
        """The bytes of all boxes in each file, which is a little larger."""
        found = dict.fromkeys(self.files(), 0)
        for kind, split in self.tensors.items():
            for one in split.values():
                for box in one.boxes:
                    found[file_name(kind, box.rank, self.ranks)] += prod(box.shape) * DTYPES[one.dtype][1]
        return found


def file_name(kind: str, rank: int, ranks: int) -> str:
    """
    >>> file_name("model", 1, 4)
    'model-00002-of-00004.safetensors'
    """
    return f"{kind}-{rank + 1:05}-of-{ranks:05}.safetensors"


def piece_name(name: str, start: tuple[int, ...]) -> str:
    """A piece's name in its file: a rank may have several of one tensor.

    >>> piece_name("qkv", (8, 0))
    'qkv@8,0'
    """
    return f"{name}@{','.join(map(str, start))}"


def is_divided(boxes: Sequence[Box], start: tuple[int, ...], shape: tuple[int, ...], depth: int = 0) -> bool:
    """Whether ``boxes`` are the box at ``start`` of this shape, each element once.

    Ranks divide a tensor along one dimension, and the parts again: so does this, without comparing all pairs.
    """
    if 0 in shape:
        return not boxes
    if len(boxes) == 1:
        return boxes[0].start == start and boxes[0].shape == shape
    for dim in range(len(shape) if depth < DEEPEST else 0):
        groups: list[list[Box]] = []
        end = start[dim]
        for box in sorted(boxes, key=lambda box: box.start[dim]):
            if box.start[dim] == end:
                groups.append([])
            elif not groups or box.start[dim] > end:
                return False  # a gap
            groups[-1].append(box)
            end = max(end, box.end[dim])
        if end != start[dim] + shape[dim]:
            return False
        if len(groups) > 1:
            firsts = [*(group[0].start[dim] for group in groups), end]
            return all(
                is_divided(group, _put(start, dim, first), _put(shape, dim, last - first), depth + 1)
                for group, first, last in zip(groups, firsts[:-1], firsts[1:], strict=True)
            )
    return False


def read_map(manifest: JsonObject) -> ShardMap:
    """The map in a manifest, which anybody may have written; a ``ValueError`` names what is wrong with it."""
    ranks, tensors, shared = (manifest.get(key) for key in ("ranks", "tensors", SHARED))
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"its 'ranks' are {ranks!r}, not a number from 1 to {MOST_RANKS}")
    if not isinstance(tensors, dict) or not isinstance(shared, dict) or {*tensors} != {*KINDS} or {*shared} != {*KINDS}:
        raise ValueError(f"its 'tensors' and {SHARED!r} are not tables of {' and '.join(KINDS)}")
    split = {}
    for kind in KINDS:
        if not isinstance(tensors[kind], dict) or not isinstance(shared[kind], dict):
            raise ValueError(f"its tensors of the {kind} are no table")
        split[kind] = {name: _read_tensor(name, entry, ranks) for name, entry in tensors[kind].items()}
        for other, name in shared[kind].items():
            if not isinstance(name, str) or name not in split[kind] or other in split[kind]:
                raise ValueError(f"{other!r} is the same as {name!r}, which is not there")
    found = ShardMap(ranks, split, shared)
    found.check()
    return found


def _read_tensor(name: str, entry: object, ranks: int) -> SplitTensor:
    if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "pieces"} or entry["dtype"] not in [*DTYPES]:
        raise ValueError(f"{name!r} does not have a dtype, a shape and pieces")
    if not isinstance(entry["pieces"], list):
        raise ValueError(f"the pieces of {name!r} are no list")
    shape, boxes = _numbers(entry["shape"], name), []
    for piece in entry["pieces"]:
        if not isinstance(piece, list) or len(piece) != 3 or type(piece[0]) is not int or not 0 <= piece[0] < ranks:
            raise ValueError(f"a piece of {name!r} does not have a rank, a start and a shape")
        box = Box(piece[0], _numbers(piece[1], name), _numbers(piece[2], name))
        if not len(box.start) == len(box.shape) == len(shape) or 0 in box.shape:
            raise ValueError(f"a piece of {name!r} is no box of a tensor of {len(shape)} dimensions")
        boxes.append(box)
    return SplitTensor(entry["dtype"], shape, tuple(boxes))


def _numbers(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        raise ValueError(f"{name!r} has a shape or a start that is no list of numbers")
    if not all(type(number) is int and 0 <= number < 2**48 for number in value):
        raise ValueError(f"{name!r} has a shape or a start with something else than numbers from 0")
    return tuple(value)


def _put(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
