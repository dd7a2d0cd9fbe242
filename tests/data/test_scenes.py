"""Scenes: captions are read back, the image shows what its caption says, and training never shows held-out pairs."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image

from regard.data import SceneData, ScenesConfig, SceneTextData, SceneTextsConfig
from regard.data.base import IGNORE_INDEX
from regard.data.examples import draw
from regard.data.images.data import to_floats
from regard.data.images.folder import png, read_image
from regard.data.scenes.draw import DRAWS
from regard.data.scenes.grammar import (
    COLORS,
    HELD_OUT,
    INVERSE,
    LONGEST,
    PAIRS,
    WORDS,
    Caption,
    Group,
    caption_of,
    every_caption,
    parse,
    random_caption,
    rearranged,
    reworded,
)
from regard.data.scenes.texts import NEGATIVES, REARRANGED
from regard.errors import UserError
from regard.models import GPTConfig, ViTConfig

GROUPS = st.builds(Group, st.integers(1, 2), st.integers(0, PAIRS - 1))
TWO = st.tuples(GROUPS, st.sampled_from(list(INVERSE)), GROUPS).filter(lambda one: one[0].pair != one[2].pair)
CAPTIONS = st.one_of(GROUPS.map(Caption), TWO.map(lambda parts: Caption(*parts)))


@pytest.fixture(scope="module")
def data() -> SceneData:
    return ScenesConfig(scenes=60).build(0)


@given(CAPTIONS)
def test_captions_are_read_back_from_their_text_and_from_their_tokens(caption: Caption) -> None:
    assert parse(str(caption)) == caption
    assert len(caption.tokens) == LONGEST
    assert all(0 <= token < len(WORDS) for token in caption.tokens)
    assert caption_of(caption.tokens) == str(caption)
    assert caption.inverse.inverse == caption
    assert caption.canonical == caption.inverse.canonical
    assert caption.canonical in (caption, caption.inverse)
    assert caption.held_out == any(group.pair in HELD_OUT for group in caption.groups)


@pytest.mark.parametrize(
    "text", ["", "a dog", "a red 3s", "two red 3", "a red 3 left a blue 7", "a red 3 above a red 3", "a red 3 above"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no caption of a scene"):
        parse(text)


def test_every_color_and_every_digit_is_also_in_pairs_that_are_not_held_out() -> None:
    usual = [Group(1, pair) for pair in range(PAIRS) if pair not in HELD_OUT]
    assert {group.color for group in usual} == set(range(len(COLORS)))
    assert {group.digit for group in usual} == set(range(10))
    assert len(HELD_OUT) == 8


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=6, max_size=6), st.booleans())
def test_random_captions_keep_training_and_test_apart(random: list[float], held_out: bool) -> None:
    caption = random_caption(np.array(random), held_out)
    assert caption.held_out == held_out
    assert caption.canonical == caption


def quarter(box: np.ndarray) -> tuple[bool, bool]:
    return bool(box[1] > 0.5), bool(box[0] > 0.5)  # lower, right


@given(CAPTIONS, st.integers(0, 2**32 - 1))
def test_a_scene_shows_its_caption(data: SceneData, caption: Caption, seed: int) -> None:
    caption = caption.canonical
    scene = data.writing[0].draw(caption, np.random.default_rng(seed).random(DRAWS))
    count = sum(group.number for group in caption.groups)
    assert (scene.classes != IGNORE_INDEX).sum() == count
    start, groups = 0, []
    for group in caption.groups:
        rows = range(start, start + group.number)
        assert (scene.classes[rows] == group.digit).all()
        color = np.array(tuple(COLORS.values())[group.color], float)
        for row in rows:
            column, line, width, height = scene.boxes[row] * 24
            left, top = round(float(column - width / 2)), round(float(line - height / 2))
            cut = scene.image[:, top : top + round(float(height)), left : left + round(float(width))]
            assert cut[:, 0].any()
            assert cut[:, -1].any()
            assert cut[:, :, 0].any()
            assert cut[:, :, -1].any()
            ink = cut.reshape(3, -1).max(1).astype(float)
            assert np.abs(ink / ink.max() - color / color.max()).max() < 0.02
        groups.append([quarter(scene.boxes[row]) for row in rows])
        start += group.number
    assert len({place for group in groups for place in group}) == count
    if caption.relation is not None:
        axis = 0 if caption.relation == "above" else 1
        assert all(not place[axis] for place in groups[0])
        assert all(place[axis] for place in groups[1])
        assert {place[1 - axis] for place in groups[0]} & {place[1 - axis] for place in groups[1]}


@given(st.integers(0, 30), st.integers(0, 99), st.sampled_from([(2, 6), (3, 4)]))
def test_a_batch_in_parts_is_the_batch_at_once(data: SceneData, step: int, seed: int, parts: tuple[int, int]) -> None:
    world, size = parts
    whole = data.batch(step, seed=seed, size=12)
    for rank in range(world):
        piece = data.batch(step, seed=seed, rank=rank, world=world, size=size)
        for one, all_of_them in zip(piece, whole, strict=True):
            assert torch.equal(one, all_of_them[rank::world])


def test_scenes_are_functions_of_their_number_and_parts_differ(data: SceneData) -> None:
    more = ScenesConfig(scenes=90).build(0)
    other = ScenesConfig(scenes=60, made=2).build(0)
    for number in range(5):
        assert (data.scene("train", number).image == more.scene("train", number).image).all()
        assert data.caption("test", number) == more.caption("test", number)
    assert any(data.caption("train", number) != other.caption("train", number) for number in range(5))
    assert data.sha256 != other.sha256
    assert not any(data.caption(part, n).held_out for part in ("train", "validation") for n in range(60))
    assert all(data.caption("test", number).held_out for number in range(60))
    batch = data.part_batch("test", np.arange(3), counts=False)
    assert (batch.targets == IGNORE_INDEX).all()
    assert (batch.captions == IGNORE_INDEX).all()
    assert [example.given for example in data.held_out(2)] == [str(data.caption("test", n)) for n in range(2)]


def test_pictures_are_written_and_read(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (6, 3, 4, 5), np.uint8)
    (tmp_path / "one.png").write_bytes(png(images[:1], 1, 8))
    assert (read_image(tmp_path / "one.png", 3)[:, ::8, ::8] == images[0]).all()
    (tmp_path / "all.png").write_bytes(png(images, 3, 2))
    found = read_image(tmp_path / "all.png", 3)
    assert found.shape == (3, 2 * (4 * 2 + 2) - 2, 3 * (5 * 2 + 2) - 2)
    assert (found[:, 10:18:2, 12:22:2] == images[4]).all()
    assert (found[:, 8:10] == 128).all()
    (tmp_path / "gray.png").write_bytes(png(images[:2, :1], 1, 1))
    with Image.open(tmp_path / "gray.png") as gray:
        assert gray.mode == "L"


def test_a_file_of_ones_own_has_no_targets(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "own.png")
    (example,) = ScenesConfig().read_examples(tmp_path / "own.png", ViTConfig(image=24))
    assert example.batch.inputs.shape == (1, 3, 24, 24)
    assert (example.batch.targets == IGNORE_INDEX).all()
    with pytest.raises(UserError, match="reads no images"):
        ScenesConfig().read_examples(tmp_path / "own.png", GPTConfig())
    with pytest.raises(ValueError, match="must be at least 1"):
        ScenesConfig(scenes=0).check()


def test_recoloring_changes_the_colors_of_training_images_only() -> None:
    plain, other = (ScenesConfig(scenes=30, recolor=share).build(0) for share in (0.0, 1.0))
    one, two = (data.batch(3, seed=1, size=8) for data in (plain, other))
    assert not torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.inputs.amax(1) > -0.999, two.inputs.amax(1) > -0.999)  # the same ink
    assert all(torch.equal(a, b) for a, b in zip(one[1:], two[1:], strict=True))
    for part in ("validation", "test"):
        numbers = np.arange(4)
        assert torch.equal(plain.part_batch(part, numbers).inputs, other.part_batch(part, numbers).inputs)
    with pytest.raises(ValueError, match="recolor is a share"):
        ScenesConfig(recolor=1.5).check()


@pytest.fixture(scope="module")
def texts() -> SceneTextData:
    return SceneTextsConfig(scenes=40, recolor=0.5).build(0)


def test_the_texts_of_scenes_are_their_captions_or_name_no_color(texts: SceneTextData, data: SceneData) -> None:
    batch, random = texts.batch(2, seed=5, size=40), draw(5, 2, 40, texts.draws)
    assert batch.tokens is not None
    assert batch.lengths is not None
    assert batch.prompts is not None
    assert batch.prompt_lengths is not None
    colored = 0
    for row, number in enumerate(texts._order(5, 2, 40)):
        caption, shown = texts.captions["train"][number], texts.images[number]
        text = texts.rows.tokenizer.decode(batch.tokens[row, : batch.lengths[row]].tolist())
        forms = [str(caption), str(caption.inverse)]
        places = range(row * NEGATIVES, (row + 1) * NEGATIVES)
        near = [texts.rows.tokenizer.decode(batch.prompts[n, : batch.prompt_lengths[n]].tolist()) for n in places]
        if random[row, 0] < 0.5:
            assert text in [" ".join(word for word in form.split() if word not in COLORS) for form in forms]
            assert not any(color in other for other in near for color in COLORS)
        else:
            assert text in forms
            assert torch.equal(batch.inputs[row], to_floats(torch.from_numpy(shown)))
            others = [parse(other).canonical for other in near]
            assert {*others[:REARRANGED]} <= {*(rearranged(caption) or reworded(caption))}
            assert {*others[REARRANGED:]} <= {*reworded(caption)}
            colored += 1
        assert text not in near
    assert 0 < colored < 40
    assert {str(one) for one in texts.captions["train"][:40]} == {str(data.caption("train", n)) for n in range(40)}


@given(CAPTIONS)
def test_what_is_nearly_right_has_one_other_word_or_the_same_ones_elsewhere(caption: Caption) -> None:
    own = caption.canonical
    before = [(one.number, one.color, one.digit) for one in own.groups]
    for other in (*reworded(own), *rearranged(own)):
        assert other.canonical == other != own
        assert not other.held_out
        assert parse(str(other)) == other
    for other in reworded(own):
        after = [(one.number, one.color, one.digit) for one in other.groups]
        assert sum(a != b for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)) == 1
        assert own.relation == other.relation
    for other in rearranged(own):
        after = [(one.number, one.color, one.digit) for one in other.groups]
        assert all(
            sorted(a) == sorted(b) for a, b in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)
        )


def test_scenes_are_named_by_every_caption(texts: SceneTextData) -> None:
    every = every_caption()
    assert len({*every}) == len(every) == 12_560
    assert all(caption == caption.canonical == parse(str(caption)) for caption in every)
    batch = texts.part_batch("test", np.arange(20))
    assert batch.tokens is not None
    assert batch.lengths is not None
    assert batch.prompts is not None
    for row, name in enumerate(batch.targets[:, 0].tolist()):
        assert batch.names[name] == str(texts.captions["test"][row])
        own = texts.rows.tokenizer.decode(batch.prompts[name, : batch.lengths[row]].tolist())
        assert own == batch.names[name] == texts.rows.tokenizer.decode(batch.tokens[row, : batch.lengths[row]].tolist())
    assert all(one.held_out for one in texts.captions["test"])
    assert not any(one.held_out for part in ("train", "validation") for one in texts.captions[part])
