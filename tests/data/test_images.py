"""Images: batches are pure functions and cover each epoch, augmentation does what it says, parts do not overlap."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from regard.data import ImageData, ImagesConfig
from regard.data.images.arrays import ImageSet, LabeledImages, idx_images, pack, read_idx, unpack
from regard.data.images.augment import affine, color, crop, cutmix, erase, flip, mixup, recolor
from regard.data.images.data import Augmentation, to_floats
from regard.data.images.folder import read_image
from regard.data.origins.source import Unavailable, read_members
from regard.errors import UserError

EVERYTHING = Augmentation(crop=2, flip=True, affine=0.5, color=0.3, erase=0.5, mixup=0.4, cutmix=0.4)


def images(count: int, seed: int = 0, shape: tuple[int, ...] = (2, 6, 5)) -> LabeledImages:
    generator = np.random.default_rng(seed)
    return LabeledImages(generator.integers(0, 256, (count, *shape), np.uint8), generator.integers(0, 3, count))


def data(count: int = 23, change: Augmentation | None = None) -> ImageData:
    return ImageData((images(count), images(5, 1), images(4, 2)), ("a", "b", "c"), name="test", augmentation=change)


@pytest.mark.parametrize("change", [None, EVERYTHING], ids=["plain", "augmented"])
@given(st.integers(0, 40), st.integers(0, 2**63 - 1), st.sampled_from([(2, 6), (3, 4), (4, 3), (12, 1)]))
def test_a_batch_in_parts_is_the_batch_at_once(change, step: int, seed: int, parts: tuple[int, int]) -> None:
    world, size = parts
    one = data(change=change).batch(step, seed=seed, size=12)
    pieces = [data(change=change).batch(step, seed=seed, rank=rank, world=world, size=size) for rank in range(world)]
    for whole, *some in zip(one, *pieces, strict=True):
        if whole is None:
            assert some == [None] * world
            continue
        joined = torch.empty_like(whole)
        for rank, piece in enumerate(some):
            joined[rank::world] = piece
        assert torch.equal(joined, whole)


def test_every_image_occurs_once_in_an_epoch() -> None:
    made = data(24)
    assert made.epoch(4, 2) == 3
    rows = torch.cat([made.batch(step, seed=3, size=8).inputs for step in range(3)]).flatten(1)
    expected = to_floats(torch.from_numpy(made.train.images)).flatten(1)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.tolist()))
    again = torch.cat([made.batch(step, seed=3, size=8).inputs for step in range(3, 6)]).flatten(1)
    assert not torch.equal(rows, again)
    assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, expected.tolist()))


def test_a_batch_may_cross_the_end_of_an_epoch() -> None:
    made = data(5)
    rows = torch.cat([made.batch(step, seed=1, size=3).targets for step in range(5)])
    assert len(rows) == 15
    assert sorted(rows[:, 0].tolist()) == sorted([*made.train.labels.tolist()] * 3)


@given(st.integers(1, 7), st.integers(1, 3))
def test_held_out_images_are_seen_once_by_all_ranks(size: int, world: int) -> None:
    made = data()
    ranks = [list(made.validation_batches(size, rank=rank, world=world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    found = torch.cat([batch.targets[batch.targets >= 0] for batches in ranks for batch in batches])
    assert sorted(found.tolist()) == sorted(made.validation.labels.tolist())
    assert len(found) == made.validation_count


def draws(count: int, columns: int, seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).random((count, columns))


def floats(count: int) -> torch.Tensor:
    return to_floats(torch.from_numpy(images(count).images))


def test_a_crop_is_a_shift_with_a_margin() -> None:
    given_images, random = floats(40), draws(40, 2)
    found = crop(given_images, random, 2, fill=9.0)
    for one, before, (down, across) in zip(found, given_images, (random * 5).astype(int) - 2, strict=True):
        want = torch.full_like(before, 9.0)
        for row in range(6):
            for column in range(5):
                if 0 <= row + down < 6 and 0 <= column + across < 5:
                    want[:, row, column] = before[:, row + down, column + across]
        assert torch.equal(one, want)
    assert torch.equal(crop(given_images, random, 0), given_images)


def test_a_flip_mirrors_columns() -> None:
    given_images = floats(2)
    found = flip(given_images, np.array([0.4, 0.6]))
    assert torch.equal(found[0], given_images[0].flip(2))
    assert torch.equal(found[1], given_images[1])


def test_an_affine_change_of_strength_0_is_none_and_rotates_about_the_middle() -> None:
    given_images = floats(5)
    assert torch.allclose(affine(given_images, draws(5, 4), 0.0), given_images, atol=1e-5)
    spot = torch.full((1, 1, 9, 9), -1.0)
    spot[0, 0, 4, 4:] = 1.0  # a line from the middle to the right
    # The first number is the angle: with strength pi, a quarter of a turn; the other changes are nothing at 0.5.
    turned = affine(spot, np.array([[1.0, 0.5, 0.5, 0.5]]), np.pi)
    assert torch.allclose(turned, spot.rot90(1, (2, 3)), atol=1e-5) or torch.allclose(
        turned, spot.rot90(-1, (2, 3)), atol=1e-5
    )


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_recolored_image_has_the_forms_of_the_image(seed: int, share: float) -> None:
    """Each pixel is the same convex mixture of its channels; what has one value in all of them keeps it."""
    draws = np.random.default_rng(seed)
    given, random = torch.from_numpy(draws.uniform(-1, 1, (5, 3, 4, 6))), draws.random((5, 10))
    given[:, :, 0] = given[:, :1, 0]  # a gray row
    found = recolor(given, random, share)
    torch.testing.assert_close(found[:, :, 0], given[:, :, 0], rtol=0, atol=1e-6)
    assert (found <= given.amax(1, keepdim=True) + 1e-6).all()
    assert (found >= given.amin(1, keepdim=True) - 1e-6).all()
    kept = torch.from_numpy(random[:, 0] >= share)
    assert torch.equal(found[kept], given[kept])
    flat = [image.flatten(2) for image in (given, found)]
    for row in np.flatnonzero(~kept.numpy()):  # the new channels are linear in the old ones
        matrix = torch.linalg.lstsq(flat[0][row].T, flat[1][row].T).solution
        torch.testing.assert_close(flat[0][row].T @ matrix, flat[1][row].T, rtol=0, atol=1e-5)


def test_colors_change_as_their_names_say() -> None:
    given_images = floats(3) * 0.1
    brighter = color(given_images, np.full((3, 3), [1.0, 0.5, 0.5]), 0.2)
    assert torch.allclose(brighter, given_images + 0.2)
    flat = color(given_images, np.full((3, 3), [0.5, 0.0, 0.5]), 1.0)  # no contrast: the mean
    assert torch.allclose(flat, given_images.mean((1, 2, 3), keepdim=True).expand_as(flat), atol=1e-6)
    gray = color(given_images, np.full((3, 3), [0.5, 0.5, 0.0]), 1.0)
    assert torch.allclose(gray, given_images.mean(1, keepdim=True).expand_as(gray), atol=1e-6)


def test_erasing_fills_one_rectangle() -> None:
    given_images = torch.ones(200, 1, 20, 20)
    random = draws(200, 5)
    found = erase(given_images, random, 0.5)
    changed = (found == 0)[:, 0].numpy()
    assert np.array_equal(changed.any((1, 2)), random[:, 0] < 0.5)
    for one in changed[changed.any((1, 2))]:
        rows, columns = one.any(1), one.any(0)
        assert np.array_equal(one, rows[:, None] & columns)  # a rectangle
        assert all(np.diff(np.flatnonzero(side)).max(initial=1) == 1 for side in (rows, columns))  # in one piece
        assert 0.01 < one.mean() < 0.4


def test_a_rectangle_of_another_image_counts_by_its_area() -> None:
    weights = draws(300, 1)[:, 0].astype(np.float32)
    found, kept = cutmix(torch.zeros(300, 1, 20, 20), torch.ones(300, 1, 20, 20), weights, draws(300, 2, 8))
    assert np.allclose(kept, 1 - found.mean((1, 2, 3)).numpy(), atol=1e-6)
    assert (kept >= weights - 0.06).all()  # a part of a rectangle may lie outside; sides are whole pixels
    assert abs(np.median(kept - weights)) < 0.2


def test_mixed_images_and_their_classes_have_the_same_weights() -> None:
    made = data(30, Augmentation(mixup=0.5))
    batch = made.batch(0, seed=2, size=64)
    plain = data(30).batch(0, seed=2, size=64)
    assert batch.weights is not None
    assert batch.others is not None
    mixed = batch.weights < 1
    assert 10 < int(mixed.sum()) < 54
    assert torch.equal(batch.inputs[~mixed], plain.inputs[~mixed])
    assert torch.equal(batch.targets, plain.targets)
    both = mixup(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), np.array([0.25], np.float32))
    assert torch.equal(both, torch.full((1, 1, 2, 2), 0.25))


def test_packed_images_come_back(tmp_path: Path) -> None:
    given_set = ImageSet(images(7), LabeledImages.none((2, 6, 5)), ("one", "two", "three"))
    assert pack(given_set) == pack(given_set)
    path = tmp_path / "images.safetensors"
    path.write_bytes(pack(given_set))
    found = unpack(path)
    assert found.labels == given_set.labels
    for part, other in zip(found[:2], given_set[:2], strict=True):
        assert all(np.array_equal(one, two) for one, two in zip(part, other, strict=True))
    path.write_bytes(pack(given_set)[:-9])
    with pytest.raises(UserError, match="no whole file of images"):
        unpack(path)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_files_of_mnist(tmp_path: Path) -> None:
    pixels, labels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4), np.array([1, 0], np.uint8)
    assert np.array_equal(read_idx(idx(pixels)), pixels)
    members = {f"data/{part}-images-idx3-ubyte": idx(pixels) for part in ("train", "t10k")}
    members |= {f"data/{part}-labels-idx1-ubyte": idx(labels) for part in ("train", "t10k")}
    path = tmp_path / "one.safetensors"
    path.write_bytes(idx_images(members, ("no", "yes")))
    found = unpack(path)
    assert found.test.images.shape == (2, 1, 3, 4)
    assert found.train.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="no IDX file"):
        read_idx(b"\0\0\x0d\x01" + bytes(8))


def deb(files: dict[str, bytes]) -> bytes:
    """A Debian package: an `ar` archive of three files, the last of them a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": packed.getvalue()}
    found = b"!<arch>\n"
    for name, content in parts.items():
        found += (
            f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )
    return found


def test_members_of_a_debian_package(tmp_path: Path) -> None:
    path = tmp_path / "one_all.deb"
    path.write_bytes(deb({"usr/share/a.gz": gzip.compress(b"a"), "usr/share/b.txt": b"b"}))
    assert list(read_members(path, ("usr/share/*.gz",))) == ["usr/share/a.gz"]
    with pytest.raises(Unavailable, match="lacks usr/none"):
        read_members(path, ("usr/none",))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(Unavailable):
        read_members(path, ("usr/share/b.txt",))


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    """From the installed file: no network is needed."""
    datasets = pytest.importorskip("sklearn.datasets")
    made = ImagesConfig(source="digits").build(0, tmp_path)
    parts = (made.train, made.validation, made.test)
    assert [len(part.labels) for part in parts] == [1437, 180, 180]
    ours = sorted(
        (np.rint(image / 255 * 16).astype(int).tobytes(), int(label))
        for part in parts
        for image, label in zip(*part, strict=True)
    )
    theirs = datasets.load_digits()
    assert ours == sorted(
        (image.astype(int).tobytes(), int(label)) for image, label in zip(theirs.images, theirs.target, strict=True)
    )
    assert made.shape == (1, 8, 8)
    assert made.labels == tuple("0123456789")
    limited = ImagesConfig(source="digits", limit=50).build(0, tmp_path)
    assert len(limited.train.labels) == 50
    assert np.array_equal(limited.test.images, made.test.images)
    assert limited.sha256 != made.sha256


def test_equal_images_are_in_one_part(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    folder(tmp_path / "own", copies=2)
    made = ImagesConfig(path=str(tmp_path / "own"), validation=0.3, test=0.3, size=8).build(0)
    keys = [{image.tobytes() for image in part.images} for part in (made.train, made.validation, made.test)]
    assert all(keys)
    assert len(set.union(*keys)) == sum(map(len, keys))


def folder(path: Path, copies: int = 1, count: int = 12) -> None:
    """Images of two classes as PNG files, each ``copies`` times."""
    from PIL import Image

    generator = np.random.default_rng(1)
    for label in ("dark", "light"):
        (path / label / "more").mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 100, (8, 10, 3), np.uint8) + (100 if label == "light" else 0)
            for copy in range(copies):
                where = path / label / ("more" if copy else ".") / f"{number}.png"
                Image.fromarray(pixels).save(where)


def test_a_folder_of_ones_own_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    folder(tmp_path / "own")
    color = ImagesConfig(path=str(tmp_path / "own"), validation=0.25, test=0.25).build(0)
    assert (color.shape, color.labels) == ((3, 8, 10), ("dark", "light"))
    gray = ImagesConfig(path=str(tmp_path / "own"), channels=1, size=4, validation=0.25, test=0.25).build(0)
    assert gray.shape == (1, 4, 4)
    for made in (color, gray):
        assert sum(len(part.labels) for part in (made.train, made.validation, made.test)) == 24
        bright = [made.train.images[made.train.labels == label].mean() for label in (0, 1)]
        assert bright[1] > bright[0] + 80
    (tmp_path / "own").rename(tmp_path / "train")
    (tmp_path / "whole").mkdir()
    (tmp_path / "train").rename(tmp_path / "whole" / "train")
    folder(tmp_path / "whole" / "test", count=3)
    divided = ImagesConfig(path=str(tmp_path / "whole"), validation=0.25).build(0)
    assert divided.test_count == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "nowhere"}, "there is no folder nowhere"),
        ({"path": "own/light"}, "has 1 folders"),
        ({"path": "empty"}, "has no image"),
        ({"path": "broken"}, "is no image that Pillow reads"),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(change, message: str, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "own")
    for name in ("empty", "broken"):
        for label in ("a", "b"):
            (tmp_path / name / label).mkdir(parents=True)
    for label in ("a", "b"):
        (tmp_path / "broken" / label / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    with pytest.raises(UserError, match=message):
        ImagesConfig(**change).build(0)


def test_an_image_that_is_not_there_is_no_broken_one(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    with pytest.raises(UserError, match=r"^there is no file .*nothere\.png$"):
        read_image(tmp_path / "nothere.png", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "plays"}, "source 'plays' has no images; with images are: cifar10, digits"),
        ({"mixup": 1.5}, "mixup is a share"),
        ({"mixup": 0.6, "cutmix": 0.6}, "together at most 1, not 1.2"),
        ({"channels": 2}, "channels must be 1"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"crop": -1}, "crop must be at least 0"),
    ],
)
def test_impossible_values_are_refused(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImagesConfig(**change).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "sizes"),
    [
        ("mnist", (1, 28, 28), (60_000, 10_000)),
        ("fashion-mnist", (1, 28, 28), (60_000, 10_000)),
        ("cifar10", (3, 32, 32), (50_000, 10_000)),
    ],
)
def test_fetched_images(name: str, shape: tuple[int, ...], sizes: tuple[int, int], tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    found = ImagesConfig(source=name).read(tmp_path)
    for part, size in zip((found.train, found.test), sizes, strict=True):
        assert part.images.shape == (size, *shape)
        counts = np.bincount(part.labels)
        assert len(counts) == len(found.labels) == 10
        assert counts.min() > size / 12
