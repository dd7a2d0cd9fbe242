"""Where the pieces of several ranks are: written, checked and read again in any other boxes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from regard.runs.shards import Box, ShardMap, SplitTensor, is_divided, read_map
from regard.runs.tensors import DTYPES, TensorFiles, write_pieces

Part = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def divided(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and boxes of it: some box is cut in two along a dimension, again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    parts: list[Part] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        start, size = parts.pop(draw(st.integers(0, len(parts) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, size[dim]))
        for first, length in ((0, cut), (cut, size[dim] - cut)):
            if length:
                low, new = list(start), list(size)
                low[dim], new[dim] = low[dim] + first, length
                parts.append((tuple(low), tuple(new)))
    return shape, [Box(rank, *part) for rank, part in enumerate(draw(st.permutations(parts)))]


@given(divided(), st.data())
def test_boxes_that_divide_a_tensor_are_known_from_others(found, data: st.DataObject):
    shape, boxes = found
    start = (0,) * len(shape)
    assert is_divided(boxes, start, shape)
    assert not is_divided(boxes[1:], start, shape)
    assert not is_divided([*boxes, boxes[0]], start, shape)
    box, dim = data.draw(st.sampled_from(boxes)), data.draw(st.integers(0, len(shape) - 1))
    others = [other for other in boxes if other is not box]
    moved, longer = list(box.start), list(box.shape)
    moved[dim] += 1
    longer[dim] += 1
    assert not is_divided([*others, box._replace(start=tuple(moved))], start, shape)
    assert not is_divided([*others, box._replace(shape=tuple(longer))], start, shape)


@given(divided(), st.sampled_from(list(DTYPES)), st.data())
def test_any_box_is_read_from_any_pieces(tmp_path_factory: pytest.TempPathFactory, found, dtype, data: st.DataObject):
    shape, boxes = found
    folder = tmp_path_factory.mktemp("pieces")
    ranks, own = len(boxes), getattr(torch, DTYPES[dtype][0])
    whole = torch.randint(0, 2, shape).to(own)
    split = ShardMap(ranks, {"model": {"w": SplitTensor(dtype, shape, tuple(boxes))}, "optimizer": {}}, NOTHING)
    assert read_map(json.loads(json.dumps(split.render()))) == split
    for box in boxes:
        place = tuple(slice(a, b) for a, b in zip(box.start, box.end, strict=True))
        name = f"w@{','.join(map(str, box.start))}"
        write_pieces(folder / f"model-{box.rank + 1:05}-of-{ranks:05}.safetensors", {name: whole[place]})
    low = [data.draw(st.integers(0, size - 1)) for size in shape]
    part = tuple(slice(a, data.draw(st.integers(a + 1, size))) for a, size in zip(low, shape, strict=True))
    with TensorFiles(folder) as files:
        stored = split.stored("model", files)["w"]
        assert torch.equal(stored[part].view(torch.uint8), whole[part].contiguous().view(torch.uint8))
        assert torch.equal(stored.whole().view(torch.uint8), whole.view(torch.uint8))


NOTHING: dict[str, dict[str, str]] = {"model": {}, "optimizer": {}}


def test_what_is_written_is_a_safetensors_file_with_its_size_and_hash(tmp_path: Path):
    import hashlib

    given = {
        "half": torch.randn(3, 3).half().T,
        "flag": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
        "step": torch.tensor(3.0, dtype=torch.float64),
        "strided": torch.arange(12.0).view(3, 4)[:, 1:3],
    }
    entry = write_pieces(tmp_path / "x.safetensors", given)
    data = (tmp_path / "x.safetensors").read_bytes()
    assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == given.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in given.items())
    with pytest.raises(TypeError, match="x has the dtype"):
        write_pieces(tmp_path / "y.safetensors", {"x": torch.zeros(2, dtype=torch.complex128)})


def _set(*path: Any) -> Callable[[dict], None]:
    *way, last, value = path

    def change(manifest: dict) -> None:
        for key in way:
            manifest = manifest[key]
        manifest[last] = value

    return change


W = ("tensors", "model", "w")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("ranks", 0), "'ranks' are 0"),
        (_set("ranks", True), "'ranks' are True"),
        (_set("ranks", 10**12), "'ranks'"),
        (_set("tensors", []), "not tables"),
        (_set("tensors", "model", []), "no table"),
        (_set("shared", "model", {"head": "other"}), "'head' is the same as 'other'"),
        (_set("shared", "model", {"w": "w"}), "'w' is the same"),
        (_set(*W, []), "a dtype, a shape and pieces"),
        (_set(*W, "dtype", ["F32"]), "a dtype, a shape and pieces"),
        (_set(*W, "dtype", "P32"), "a dtype, a shape and pieces"),
        (_set(*W, "shape", [4, -1]), "numbers from 0"),
        (_set(*W, "shape", [4, 1e9]), "numbers from 0"),
        (_set(*W, "shape", [1] * 100), "no list"),
        (_set(*W, "shape", [2**40, 2**40]), "overlap, or some are missing"),
        (_set(*W, "pieces", 0, 0, 2), "a rank, a start and a shape"),
        (_set(*W, "pieces", 0, 1, [1, 0]), "overlap, or some are missing"),
        (_set(*W, "pieces", 1, 1, [1, 0]), "overlap, or some are missing"),
        (_set(*W, "pieces", 0, 2, [2, 9]), "overlap, or some are missing"),
        (_set(*W, "pieces", 0, 2, [2]), "no box"),
        (_set(*W, "pieces", 0, 2, [2, 0]), "no box"),
        (_set(*W, "pieces", []), "overlap, or some are missing"),
    ],
)
def test_a_manifest_that_anybody_wrote_is_checked(change, said):
    boxes = Box(0, (0, 0), (2, 3)), Box(1, (2, 0), (2, 3))
    split = ShardMap(2, {"model": {"w": SplitTensor("F32", (4, 3), boxes)}, "optimizer": {}}, NOTHING)
    manifest = json.loads(json.dumps(split.render()))
    assert read_map(copy.deepcopy(manifest)) == split
    change(manifest)
    with pytest.raises(ValueError, match=said):
        read_map(manifest)


def test_deeply_nested_pieces_end_with_a_word():
    """A staircase, of which each cut takes one box away."""
    steps = 2000
    boxes = [Box(0, (n, n), (1, steps - n)) for n in range(steps)] + [
        Box(0, (n + 1, n), (steps - n - 1, 1)) for n in range(steps - 1)
    ]
    assert not is_divided(boxes, (0, 0), (steps, steps))
