"""What is remembered of a file is used only while the file is untouched; a doubt means reading it again."""

import json
import os
import time

import pytest

from regard.data import TextConfig
from regard.data.origins import cache as cache_module
from regard.data.origins.cache import recall, stat_files
from regard.data.origins.cache import remember as keep
from regard.data.texts.text_file import TextFile
from regard.errors import UserError


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be\n")
    return file


@pytest.fixture
def settled(monkeypatch):
    """Files count as left alone at once."""
    monkeypatch.setattr(cache_module, "_SETTLED", -1.0)


@pytest.fixture
def reads(monkeypatch):
    """How often a text was read to its end."""
    counted, real = [], TextFile.pieces

    def pieces(self):
        yield from real(self)
        counted.append(self.path)

    monkeypatch.setattr(TextFile, "pieces", pieces)
    return counted


def summary(path, tmp_path):
    return TextFile(path, None, tmp_path / "cache").summary()


@pytest.mark.usefixtures("settled")
def test_an_untouched_file_is_read_once(path, tmp_path, reads):
    first = summary(path, tmp_path)
    assert summary(path, tmp_path) == first
    assert len(reads) == 1
    assert TextFile(path, 5, tmp_path / "cache").summary() != first  # another question
    assert TextFile(path, None, None).summary() == first
    assert len(reads) == 3


def _rewritten(path):
    path.write_text("to be or not to bE\n")


def _rewritten_and_backdated(path):
    before = path.stat()
    path.write_text("to be or not to bE\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced_and_backdated(path):
    before, other = path.stat(), path.with_name("other.txt")
    other.write_text("to be or not to bE\n")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [_rewritten, _rewritten_and_backdated, _replaced_and_backdated])
def test_a_change_of_the_same_size_is_noticed(path, tmp_path, change):
    first = summary(path, tmp_path)
    time.sleep(0.02)  # longer than a tick of the file system's clock
    change(path)
    second = summary(path, tmp_path)
    assert second != first
    assert second == TextFile(path).summary()


def test_a_file_that_just_changed_is_not_remembered(path, tmp_path, reads):
    first = summary(path, tmp_path)
    assert summary(path, tmp_path) == first
    assert len(reads) == 2
    assert not (tmp_path / "cache" / "seen").exists()


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_read_is_not_remembered(path, tmp_path):
    before = stat_files([path])
    time.sleep(0.02)
    _rewritten(path)
    keep(tmp_path / "cache", "question", before, stat_files([path]), {"answer": 1})
    assert recall(tmp_path / "cache", "question", before) is None
    assert recall(tmp_path / "cache", "question", stat_files([path])) is None


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", ["", "[]", "{}", "null", '{"state": 1}', "\0\0", '{"state": STATE, "answer": {}}',
                                    '{"state": STATE, "answer": {"sha256": "0"}}'])  # fmt: skip
def test_a_damaged_memory_is_no_memory(path, tmp_path, damage):
    first = summary(path, tmp_path)
    (kept,) = (tmp_path / "cache" / "seen").iterdir()
    kept.write_text(damage.replace("STATE", json.dumps(json.loads(kept.read_text())["state"])))
    assert summary(path, tmp_path) == first
    assert json.loads(kept.read_text())["answer"]["sha256"] == first.sha256


@pytest.mark.usefixtures("settled")
def test_a_wrong_memory_is_forgotten(path, tmp_path):
    """Should it ever lie, the tokens show it, and the next start reads everything."""
    summary(path, tmp_path)
    (kept,) = (tmp_path / "cache" / "seen").iterdir()
    kept.write_text(kept.read_text().replace(summary(path, tmp_path).sha256, "0" * 64))
    assert summary(path, tmp_path).sha256 == "0" * 64
    config = TextConfig(path=str(path), validation=0)
    with pytest.raises(UserError, match="changed while it was being read"):
        config.build(4, tmp_path / "cache")
    assert config.build(4, tmp_path / "cache").sha256 == TextFile(path).summary().sha256


@pytest.mark.usefixtures("settled")
def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(path, tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    assert summary(path, tmp_path) == TextFile(path).summary()
