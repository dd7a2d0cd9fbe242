"""Pathfinder: the answer by a flood fill, balanced classes, batches as pure functions, parts that differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.cli import main
from regard.data import PathfinderConfig, PathfinderData
from regard.data.images.pathfinder import DOT, PATH
from regard.errors import UserError


def reached(picture: np.ndarray) -> bool:
    """Whether a flood fill from one dot finds the other; it steps over single pixels that are left out."""
    (start, goal), seen = (tuple(map(int, place)) for place in np.argwhere(picture == DOT)), set[tuple[int, int]]()
    edge = [start]
    while edge:
        row, column = edge.pop()
        if (row, column) in seen:
            continue
        seen.add((row, column))
        near = picture[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
        edge += [(max(0, row - 2) + int(y), max(0, column - 2) + int(x)) for y, x in np.argwhere(near > 0)]
    return goal in seen


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([8, 12, 16, 24, 32]), st.sampled_from(["train", "validation", "test"]), st.integers(0, 10**9))
def test_the_answer_is_that_of_a_flood_fill(size, part, number):
    picture, connected = PathfinderConfig(size=size).build(0).example(number % 7, part, number)
    assert picture.shape == (size, size)
    assert set(np.unique(picture)) == {0, PATH, DOT}
    assert (picture == DOT).sum() == 2
    assert reached(picture) == connected


def test_classes_are_balanced_and_neither_ink_nor_distance_tells_them():
    data = PathfinderConfig(size=16).build(0)
    pictures, labels = zip(*(data.example(1, "train", number) for number in range(1500)), strict=True)
    answer = np.array(labels)
    assert abs(answer.mean() - 0.5) < 0.06  # 4.6 standard deviations
    ends = np.array([np.argwhere(picture == DOT) for picture in pictures])
    for measure, most in (
        ((np.array(pictures) > 0).sum((1, 2)), 0.56),
        (np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1), 0.75),
    ):
        best = max(abs(((measure <= edge) == answer).mean() - 0.5) for edge in np.unique(measure)) + 0.5
        assert best < most


def test_batches_are_functions_of_seed_and_step_and_made_of_their_parts():
    data = PathfinderConfig(size=12).build(0)
    whole = data.batch(3, seed=5, size=8)
    assert torch.equal(whole.inputs, PathfinderConfig(size=12).build(0).batch(3, seed=5, size=8).inputs)
    halves = [data.batch(3, seed=5, rank=rank, world=2, size=4) for rank in range(2)]
    assert torch.equal(whole.inputs, torch.stack([half.inputs for half in halves], 1).flatten(0, 1))
    assert torch.equal(whole.targets, torch.stack([half.targets for half in halves], 1).flatten(0, 1))
    assert not torch.equal(whole.inputs, data.batch(3, seed=6, size=8).inputs)
    assert not torch.equal(whole.inputs, data.batch(4, seed=5, size=8).inputs)


def test_no_held_out_picture_is_trained_on():
    data = PathfinderConfig(size=12, validation=100).build(0)

    def seen(part, seed, count):
        return {data.example(seed, part, number)[0].tobytes() for number in range(count)}

    training = seen("train", 0, 1000) | seen("train", 1, 1000)
    assert len(training) > 1980
    assert not training & (seen("validation", 0, 100) | seen("test", 0, 100))


@pytest.mark.parametrize("world", [1, 3])
def test_every_held_out_picture_counts_once(world):
    data = PathfinderConfig(size=8, validation=10).build(0)
    for batches in (data.validation_batches, data.test_batches):
        parts = [list(batches(4, rank=rank, world=world)) for rank in range(world)]
        assert len({len(part) for part in parts}) == 1
        assert sum(int((batch.targets >= 0).sum()) for part in parts for batch in part) == 10


def test_the_test_part_has_longer_paths():
    data = PathfinderConfig(size=24).build(0)
    assert isinstance(data, PathfinderData)
    ink = {part: np.mean([(data.example(0, part, n)[0] > 0).sum() for n in range(20)]) for part in data.lengths}
    assert ink["test"] > 1.3 * ink["validation"]


def test_pictures_without_room_are_refused():
    with pytest.raises(UserError, match=r"no room for 9 paths .* lower --data\.length"):
        PathfinderConfig(size=8, paths=9).build(0)


@pytest.mark.parametrize("model", ["vit", "image-cnn", "image-lstm"])
def test_train_and_evaluate(model, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = ["--model.layers=1", "--model.width=16", *(["--model.heads=2"] if model == "vit" else [])]
    small = ["--data.validation=16", "--data.size=8", "--train.steps=2", *sizes]
    given = [
        "--model",
        model,
        *({"image-cnn": ["--model.patch=2"], "vit": ["--model.patch=2"]}.get(model, [])),
    ]
    assert main(["train", "pathfinder", *given, *small, f"--runs={tmp_path}", "--name=a"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "a"), "--part=test", "--json"]) == 0
    assert "accuracy" in json.loads(capsys.readouterr().out)
