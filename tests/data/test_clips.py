"""Clips: moving digits are pure functions whose digit and way are the label; own clips are folders and GIFs."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from regard.data import ClipsConfig
from regard.data.images.arrays import LabeledImages
from regard.data.images.clips import WAYS, moving, read_clip
from regard.errors import UserError
from regard.models import VideoConfig, ViTConfig

DIGITS = LabeledImages(np.arange(1, 6, dtype=np.uint8)[:, None, None, None].repeat(4, 2).repeat(4, 3), np.arange(5))


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 99))
def test_a_clip_is_a_function_of_seed_and_number_and_shows_its_label(count: int, frames: int, seed: int) -> None:
    made, more = (moving(DIGITS, number, frames, seed) for number in (count, count + 3))
    assert made.images.shape == (count, 1, frames, 8, 8)
    assert (made.images == more.images[:count]).all()
    assert (made.labels == more.labels[:count]).all()
    for clip, label in zip(made.images[:, 0], made.labels, strict=True):
        digit, way = divmod(int(label), len(WAYS))
        assert (np.unique(clip[clip > 0]) == digit + 1).all()
        assert ((clip > 0).sum((1, 2)) == 16).all()
        if frames > 1:
            first, last = (np.argwhere(frame).mean(0) for frame in (clip[0], clip[-1]))
            expected = {"left": (0, -4), "right": (0, 4), "up": (-4, 0), "down": (4, 0)}[WAYS[way]]
            assert tuple(last - first) == expected


def gif(path: Path, values: list[int], size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [Image.new("L", size, value) for value in values]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=40)
    return path


def folder_of_frames(path: Path, values: list[int]) -> Path:
    path.mkdir(parents=True)
    for number, value in enumerate(values):
        Image.new("L", (6, 4), value).save(path / f"{number:02}.png")
    return path


def test_a_clip_is_an_animated_image_or_a_folder_of_frames(tmp_path: Path) -> None:
    values = [0, 40, 80, 120, 160, 200, 240]
    animated, folder = gif(tmp_path / "a.gif", values), folder_of_frames(tmp_path / "b", values)
    for path in (animated, folder):
        clip = read_clip(path, 1, None, 3)
        assert clip.shape == (1, 3, 4, 6)
        assert clip[0, :, 0, 0].tolist() == [0, 80, 160]
    assert read_clip(folder, 3, (2, 2), 7).shape == (3, 7, 2, 2)
    with pytest.raises(UserError, match="7 frames, too few for 8"):
        read_clip(animated, 1, None, 8)
    (tmp_path / "c.gif").write_bytes(b"GIF89a")
    with pytest.raises(UserError, match="no image that Pillow reads"):
        read_clip(tmp_path / "c.gif", 1, None, 1)


def test_own_clips_and_predictions(tmp_path: Path) -> None:
    for number in range(6):
        gif(tmp_path / "own" / "dark" / f"{number}.gif", [number, number + 9, number + 18])
        folder_of_frames(tmp_path / "own" / "light" / str(number), [200 + number, 220 + number, 240 + number])
    config = ClipsConfig(path=str(tmp_path / "own"), frames=2, channels=1, size=4, validation=0.2, test=0.2)
    data = config.build(0)
    assert data.labels == ("dark", "light")
    assert data.shape == (1, 2, 4, 4)
    assert data.count + (data.validation_count or 0) + (data.test_count or 0) == 12
    model = VideoConfig(patch=2, tubelet=1).reading(None, data.shape)
    assert (model.channels, model.frames, model.image) == (1, 2, 4)
    assert len(config.read_examples(tmp_path / "own" / "light", model)) == 6
    (one,) = config.read_examples(tmp_path / "own" / "light" / "3", model)
    assert one.batch.inputs.shape == (1, 1, 2, 4, 4)
    with pytest.raises(UserError, match="reads no clips"):
        config.read_examples(tmp_path, ViTConfig())
    with pytest.raises(UserError, match="choose --data clips"):
        VideoConfig().reading(None, (1, 8, 8))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no clip"):
        config.read_examples(tmp_path / "empty", model)


@pytest.mark.parametrize("change", [{"frames": 0}, {"clips": 0}, {"channels": 2}, {"validation": 1.0}])
def test_impossible_values_are_refused(change: dict) -> None:
    with pytest.raises(ValueError, match=r"must be|but must"):
        ClipsConfig(**change).check()


def test_the_parts_of_moving_digits_have_other_handwriting() -> None:
    data = ClipsConfig(clips=50).build(0)
    assert (data.count, data.validation_count, data.test_count) == (50, 1000, 1000)
    assert data.labels[:5] == ("0 left", "0 right", "0 up", "0 down", "1 left")
    shown = [{np.sort(clip[0, 0], axis=None).tobytes() for clip in part.images} for part in (data.train, data.test)]
    assert not shown[0] & shown[1]
