"""Images with texts: variants of an emoji are one group, parts do not overlap, batches are pure functions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from imagetext_kit import EMOJI, emoji_files, folder
from PIL import Image

from regard.data import ImageTextConfig, ImageTextData
from regard.data.images.folder import read_image
from regard.data.imagetext.config import shrunk
from regard.data.imagetext.emoji import family, plain, read_emoji
from regard.errors import UserError

TONES = ("1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> ImageTextData:
    path = folder(tmp_path_factory.mktemp("data") / "boxes")
    config = ImageTextConfig(path=str(path), size=8, validation=0.2, test=0.2, crop=1, flip=True, erase=0.5)
    return config.build(0)


@given(st.sampled_from(("1F9D1", "1F468", "1F469")), st.sampled_from(("", *TONES)), st.sampled_from(("1F680", "1F52C")))
def test_a_person_of_any_gender_and_skin_tone_is_one_family(person: str, tone: str, thing: str) -> None:
    code = "-".join(filter(None, (person, tone, "200D", thing)))
    assert family(code) == f"1F9D1-200D-{thing}"


def test_signs_of_gender_and_direction_make_variants_and_couples_are_one_family() -> None:
    for code in ("1F3C3", "1F3C3-1F3FD", "1F3C3-200D-2640-FE0F", "1F3C3-1F3FB-200D-2642-FE0F-200D-27A1-FE0F"):
        assert family(code) == "1F3C3"
    assert family("1F491") == family("1F468-200D-2764-FE0F-200D-1F468") == family("1F46A")
    assert len({family(code) for code in ("1F34E", "1F34F", "2640", "27A1", "1F3FB")}) == 5  # things of their own


def test_emoji_are_joined_by_code_points(tmp_path: Path) -> None:
    found = read_emoji(*emoji_files(tmp_path, missing=("1F34F",)))
    by_name = {one.name: one for one in found.examples}
    assert set(by_name) == {plain(code) for code in EMOJI}
    assert by_name["1F34F"].pictures == ()
    assert len(by_name["1F44B"].pictures) == 3  # two skin tones as well
    assert by_name["2764"].texts == {"en": ["red heart", "tag7"], "de": ["red hearte", "tag7e"]}
    assert found.categories == ("things", "people")
    assert found.prompts["de"].texts == ("Below 0", "Below 1", "Group 0", "Group 1")
    assert found.prompts["de"].categories == (0, 1, 0, 1)
    assert by_name["1F436"].group == by_name["1F415"].group  # the same name
    astronauts = {one.group for name, one in by_name.items() if name.endswith("1F680")}
    assert len(astronauts) == 1
    groups = {one.group for one in found.examples}
    assert len(groups) == 6


def test_an_emoji_is_in_one_part_in_every_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    parts = []
    for name, missing in (("a", ()), ("b", ("1F34E", "1F415"))):
        read = read_emoji(*emoji_files(tmp_path / name, missing))
        monkeypatch.setattr(ImageTextConfig, "read", lambda self, cache=None, read=read: read)
        data = ImageTextConfig(validation=0.3, test=0.3).build(0)
        parts.append({part: {one.title for one in some} for part, some in data.examples.items()})
    for part, names in parts[1].items():
        assert names <= parts[0][part]
    assert not parts[0]["train"] & (parts[0]["validation"] | parts[0]["test"])


def test_transparent_parts_are_white_and_shrinking_takes_means(tmp_path: Path) -> None:
    from imagetext_kit import png
    from PIL import Image

    found = read_emoji(*emoji_files(tmp_path))
    one = next(one for one in found.examples if one.name == "1F34E")
    number = list(EMOJI).index("1F34E")
    (tmp_path / "x.png").write_bytes(png(number))
    image = Image.open(tmp_path / "x.png")
    want = np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"), np.int64)
    got = found.images[one.pictures[0]].transpose(1, 2, 0).astype(np.int64)
    assert np.abs(got - want).max() <= 1  # Pillow's rounding differs
    small = shrunk(found.images, 16)
    assert small.shape == (len(found.images), 3, 16, 16)
    np.testing.assert_allclose(small[0, 0, 0, 0], found.images[0, 0, :4, :4].mean(), atol=0.5)
    assert np.array_equal(shrunk(found.images, 64), found.images)


@given(st.integers(0, 40), st.integers(0, 2**63 - 1), st.sampled_from([(2, 6), (3, 4), (12, 1)]))
def test_a_batch_in_parts_is_the_batch_at_once(own, step: int, seed: int, parts: tuple[int, int]) -> None:
    world, size = parts
    whole = own.batch(step, seed=seed, size=12)
    for rank in range(world):
        piece = own.batch(step, seed=seed, rank=rank, world=world, size=size)
        for one, some in zip(whole[:4], piece[:4], strict=True):
            assert torch.equal(one[rank::world], some)


@pytest.mark.parametrize("candidates", [3, 4, 100])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_held_out_example_counts_once(own, monkeypatch, candidates: int, world: int) -> None:
    monkeypatch.setattr("regard.data.imagetext.data.CANDIDATES", candidates)
    ranks = [list(own.test_batches(8, rank=rank, world=world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen: Counter[str] = Counter()
    for batch in (batch for batches in ranks for batch in batches):
        assert len(batch.inputs) == min(candidates, own.test_count)
        counted = batch.targets[:, 0] >= 0
        seen.update(
            own.tokenizer.decode(row[:n]) for row, n in zip(batch.tokens[counted], batch.lengths[counted], strict=True)
        )
    assert sum(seen.values()) == own.test_count
    assert set(seen.values()) == {1}


def test_training_texts_are_labels_with_some_of_their_tags(own) -> None:
    texts = set()
    for step in range(20):
        batch = own.batch(step, seed=1, size=12)
        texts |= {own.tokenizer.decode(row[:n]) for row, n in zip(batch.tokens, batch.lengths, strict=True)}
    assert all(
        set(text.replace(",", "").split()) & {"red", "green", "blue", "yellow", "left", "right"} or text
        for text in texts
    )
    assert any("," not in text and "box" in text for text in texts)  # a label alone
    assert any("box" not in text for text in texts)  # tags alone
    assert any(text.count(",") == 2 for text in texts)


def test_refusals_name_the_fix(tmp_path: Path) -> None:
    path = folder(tmp_path / "boxes")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"captions\.tsv; put one there"):
        ImageTextConfig(path=str(tmp_path / "empty")).build(0)
    (path / "captions.tsv").write_text("file\ttext\n../secret.png\tred\n")
    with pytest.raises(UserError, match="is not in the folder"):
        ImageTextConfig(path=str(path)).build(0)
    (path / "captions.tsv").write_text("file\ttext\nred-left.png\t\n")
    with pytest.raises(UserError, match="no file or no text"):
        ImageTextConfig(path=str(path)).build(0)
    for wrong, match in (
        ({"size": 48}, "size = 32 would do"),
        ({"source": "digits"}, "with them are: emojione, fluent-emoji, noto-emoji, twemoji"),
        ({"languages": ()}, "one name at least"),
        ({"erase": 1.5}, "erase is a share"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(ImageTextConfig(), **wrong).check()


def test_damaged_pictures_and_captions_are_refused_in_one_sentence(tmp_path: Path) -> None:
    pictures, captions = emoji_files(tmp_path)
    whole = {path: path.read_bytes() for path in (pictures, captions)}
    draw = random.Random(3)
    refused = 0
    for number in range(60):
        path = (pictures, captions)[number % 2]
        content = bytearray(whole[path])
        if number % 3:
            content[draw.randrange(min(200, len(content)))] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            read_emoji(pictures, captions)
        except UserError as error:
            refused += "fetched again" in str(error)
        path.write_bytes(whole[path])
    assert refused > 25  # other errors are none; a changed bit of a picture is not noticed here, but by the SHA-256


def test_a_damaged_image_of_ones_own_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "boxes")
    image = path / "blue-top.png"
    image.write_bytes(image.read_bytes()[:40])
    with pytest.raises(UserError, match=r"blue-top\.png is no image that Pillow reads"):
        ImageTextConfig(path=str(path), size=8).build(0)


def test_an_image_of_ones_own_with_transparent_parts_is_shown_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (4, 4), (200, 10, 10, 0))
    image.putpixel((1, 2), (0, 0, 255, 255))
    image.save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", 3)
    assert found[:, 0, 0].tolist() == [255, 255, 255]
    assert found[:, 2, 1].tolist() == [0, 0, 255]
