"""A text with its own validation and test files: recognized or given, never joined."""

import dataclasses

import numpy as np
import pytest

from regard.data import BpeConfig, TextConfig
from regard.errors import UserError

TRAIN, VALID, TEST = "the best training, a valid text, abc. " * 20, "a valid text. " * 5, "the best text. " * 4
PARTS = {"train": TRAIN, "validation": VALID, "test": TEST}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return str(folder)


def text_of(data, part):
    span = data.parts._asdict()[part]
    return data.tokenizer.decode(
        [int(data._tokens.windows(np.array([span.start + number]), 1)[0, 0]) for number in range(span.size)]
    )


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("train-00000-of-00001.txt", "validation-00000-of-00001.txt", "test-00000-of-00001.txt"),
        ("train/one.txt", "dev/test-like.txt", "test/train.txt"),
    ],
)
def test_a_folder_with_parts_is_recognized(tmp_path, capfd, names):
    path = write(tmp_path / "corpus", dict(zip(names, PARTS.values(), strict=True)) | {"README.md": "about"})
    data = TextConfig(path=path).build(8, tmp_path / "cache")
    for part, text in PARTS.items():
        assert text_of(data, part) == text
    said = capfd.readouterr().err
    for name, part in zip(names, PARTS, strict=True):
        assert f"{name.rpartition('/')[2]} for {'training' if part == 'train' else part}" in said
    assert "--data.path" in said
    assert said.count("\n") == 1


def test_given_paths_are_the_same_as_a_folder(tmp_path):
    path = write(tmp_path / "corpus", {"train.txt": TRAIN, "valid.txt": VALID, "test.txt": TEST})
    config = TextConfig(path=f"{path}/train.txt", validation_path=f"{path}/valid.txt", test_path=f"{path}/test.txt")
    data, folder = (one.build(8, tmp_path / "cache") for one in (config, TextConfig(path=path)))
    assert (data.sha256, data.parts) == (folder.sha256, folder.parts)
    assert (data.train_count, data.validation_count) == (len(TRAIN), len(VALID) - 1)
    only = dataclasses.replace(config, validation_path=None, validation=0.25).build(8, tmp_path / "cache")
    assert (only.train_count, text_of(only, "test")) == (len(TRAIN) * 3 // 4, TEST)
    limited = dataclasses.replace(config, limit=40).build(8, tmp_path / "cache")
    assert (limited.train_count, limited.test_count) == (40, len(TEST) - 1)


@pytest.mark.parametrize(
    "files",
    [
        {"train.txt": TRAIN, "valid.txt": VALID, "novel.txt": TEST},
        {"train.py": TRAIN, "model.py": VALID, "tests/test_model.py": TEST},
        {"train.txt": TRAIN, "latest.txt": TEST},
        {"train.txt": TRAIN, "training.txt": VALID},
        {"valid.txt": VALID, "test.txt": TEST},
    ],
)
def test_other_folders_are_one_text(tmp_path, files):
    path = write(tmp_path / "corpus", files)
    assert list(TextConfig(path=path).texts(tmp_path / "cache")) == ["train"]


def test_every_target_stays_in_its_part(tmp_path):
    path = write(tmp_path / "corpus", {"train.txt": "a" * 40 + "bc", "valid.txt": "b" * 21, "test.txt": "c" * 22})
    data = TextConfig(path=path).build(8, tmp_path / "cache")
    assert data.tokenizer.decode(range(3)) == "abc"
    for batches, token, count in ((data.validation_batches(2), 1, 20), (data.test_batches(2), 2, 21)):
        seen = 0
        for batch in batches:
            counted = batch.targets >= 0
            assert (batch.targets[counted] == token).all()
            assert (batch.inputs[counted] == token).all()
            seen += int(counted.sum())
        assert seen == count
    assert data.amount("test") == (21, 21)


def test_the_tokenizer_is_learned_from_training_only(tmp_path):
    path = write(tmp_path / "corpus", {"train.txt": TRAIN, "valid.txt": "zzz" * 50, "test.txt": "été " * 9})
    config = TextConfig(path=path, tokenizer=BpeConfig(300))
    data = config.build(8, tmp_path / "cache")
    assert data.tokenizer == TextConfig(path=f"{path}/train.txt", tokenizer=BpeConfig(300)).build(8, tmp_path).tokenizer
    assert text_of(data, "test") == "été " * 9
    with pytest.raises(UserError, match=r"valid\.txt has what the training text lacks.*'z'.*tokenizer bpe"):
        TextConfig(path=path).build(8, tmp_path / "cache")


@pytest.mark.parametrize("name", ["train.txt", "valid.txt", "test.txt"])
def test_the_hash_covers_every_part(tmp_path, name):
    path = write(tmp_path / "corpus", {"train.txt": TRAIN, "valid.txt": VALID, "test.txt": TEST})
    before = TextConfig(path=path).build(8, tmp_path / "cache").sha256
    (tmp_path / "corpus" / name).write_text((tmp_path / "corpus" / name).read_text() + "abc")
    assert TextConfig(path=path).build(8, tmp_path / "cache").sha256 != before


def test_what_is_missing_is_named(tmp_path):
    path = write(tmp_path / "corpus", {"train.txt": TRAIN, "valid.txt": "a"})
    with pytest.raises(UserError, match="there is no file nowhere"):
        TextConfig(path=path, test_path="nowhere").build(8, tmp_path / "cache")
    with pytest.raises(UserError, match=r"the validation part of .* has 1 tokens, too few"):
        TextConfig(path=path).build(8, tmp_path / "cache")
