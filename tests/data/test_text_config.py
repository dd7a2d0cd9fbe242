"""Preparing a text: the config and its limits, and the cache of tokens."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from regard.config import dump, load
from regard.data import DataConfig, TextConfig
from regard.errors import UserError


def same(one, other):
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_the_tokens_are_kept_small_and_used_again(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 20)
    data = TextConfig(path=str(path)).build(8, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "tokens").iterdir()
    assert np.load(kept / "tokens.npy").dtype == np.uint8
    assert data.tokenizer.decode(np.load(kept / "tokens.npy")) == path.read_text()
    before = (kept / "tokens.npy").stat()
    TextConfig(path=str(path)).build(16, tmp_path / "cache")
    assert (kept / "tokens.npy").stat() == before
    assert list((tmp_path / "cache" / "partial").iterdir()) == []

    path.write_text("to be or not to bE\n" * 20)  # another text, even as long as the first, is another entry
    other = TextConfig(path=str(path)).build(8, tmp_path / "cache")
    assert other.sha256 != data.sha256
    assert "E" in other.tokenizer.decode(range(other.vocabulary))
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 2


@pytest.mark.parametrize("name", ["tokens.npy", "tokenizer.json"])
@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: os.truncate(file, 100),
                                    lambda file: file.write_bytes(file.read_bytes() + b"more")])  # fmt: skip
def test_damaged_tokens_are_made_anew(tmp_path, name, damage):
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be\n" * 20)
    config = TextConfig(path=str(path))
    expected = config.build(8, tmp_path / "cache").batch(0, seed=0, size=4)
    (kept,) = (tmp_path / "cache" / "tokens").iterdir()
    sound = {file.name: file.read_bytes() for file in kept.iterdir()}
    damage(kept / name)
    assert same(config.build(8, tmp_path / "cache").batch(0, seed=0, size=4), expected)
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == sound
    assert list((tmp_path / "cache" / "partial").iterdir()) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_many_processes_at_once(tmp_path, damaged):
    path, cache = tmp_path / "text.txt", tmp_path / "cache"
    path.write_text("to be or not to be\n" * 20_000)
    if damaged:
        TextConfig(path=str(path)).build(8, cache)
        os.truncate(next(cache.glob("tokens/*/tokens.npy")), 1000)
    program = (
        "import sys; from regard.data import TextConfig; from pathlib import Path;"
        "print(len(TextConfig(path=sys.argv[1]).build(8, Path(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", program, path, cache]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in running] == ["380000"] * 4
    assert len(list((cache / "tokens").iterdir())) == 1
    assert list((cache / "partial").iterdir()) == []


def test_the_limit_is_as_if_the_file_ended_there(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abab€cdcd", encoding="utf-8")
    data = TextConfig(path=str(path), limit=5, validation=0).build(2, tmp_path)
    assert len(data) == 5
    assert data.tokenizer.decode(range(data.vocabulary)) == "ab€"
    assert list(data.validation_batches(3)) == []


def test_a_context_longer_than_the_data_gets_the_largest_that_fits(config, folder):
    with pytest.raises(UserError, match=r"context of 900 is longer .* --model\.context 899"):
        config.build(900, folder / "cache")
    assert config.build(899, folder / "cache").batch(0, seed=0, size=1).inputs[0, 0] == 0


@pytest.mark.parametrize("content", ["", "a", "ab", "abc"])
def test_a_text_too_short_for_anything(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"text\.txt"):
        TextConfig(path=str(path)).build(1, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("validation", 1.0),
        ("validation", -0.1),
        ("test", 1.0),
        ("test", -0.1),
        ("test", 0.9),
        ("batch", 0),
        ("limit", 1),
        ("source", "play"),
    ],
)
def test_impossible_settings(key, value):
    with pytest.raises(UserError, match=key):
        load(DataConfig, {"kind": "text", key: value})


def test_impossible_settings_of_a_config_made_in_python(config, folder):
    with pytest.raises(ValueError, match="validation is 1"):
        dataclasses.replace(config, validation=1.0).build(8, folder / "cache")


def test_the_config_is_a_choice(config):
    assert load(DataConfig, {"kind": "text", "path": config.path, "tokenizer": "characters"}) == config
    assert load(DataConfig, dump(config)) == config


def test_reading_a_config_needs_no_torch():
    program = "import sys, regard.data; print([m for m in ('torch', 'unearth', 'tokenizers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
