"""A file, a folder or a pattern reads as one text: nothing lost, nothing twice, in sorted order, errors by name."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import TextConfig
from regard.data.texts import text_file
from regard.data.texts.text_file import TextFile
from regard.data.texts.text_files import find_texts
from regard.errors import UserError

contents = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@pytest.fixture
def books(tmp_path, monkeypatch):
    """A folder with texts at several depths, and with much that is not text."""
    folder = tmp_path / "books"
    for name, content in {
        "b.txt": b"second\n",
        "a.txt": b"first\n",
        "empty.txt": b"",
        "deep/er/c.md": "dritté\n".encode(),
        "a/z.txt": b"below a\n",
        "no-ending": b"last\n",
        ".hidden.txt": b"hidden",
        ".git/config.txt": b"hidden too",
        "picture.PNG": b"text, by its bytes",
        "program": b"\x7fELF\0\0",
        "weights.safetensors": b"{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    os.symlink(folder, folder / "deep" / "loop")
    os.symlink(folder / "b.txt", folder / "deep" / "b-again.txt")
    os.symlink(folder / "nowhere", folder / "broken.txt")
    monkeypatch.chdir(tmp_path)
    return folder


def text_of(path, tmp_path, **options):
    config = TextConfig(path=str(path), **options)
    return "".join(config.texts(tmp_path / "cache")["train"].pieces())


def test_a_folder(books, tmp_path, capfd):
    found = find_texts(str(books))
    names = [file.relative_to(books).as_posix() for file in found.files]
    assert names == sorted(names) == ["a.txt", "a/z.txt", "b.txt", "deep/er/c.md", "empty.txt", "no-ending"]
    assert found.skipped == {"binary": 1, "hidden": 2, "no regular files": 1, "not text by their suffix": 2}
    text = "\n\n".join(["first\n", "below a\n", "second\n", "dritté\n", "last\n"])  # an empty file leaves no trace
    capfd.readouterr()
    assert text_of(books, tmp_path) == text
    said = "books: 6 files (6 skipped: 1 binary, 2 hidden, 1 no regular files, 2 not text by their suffix)"
    assert said in capfd.readouterr().err


def test_a_pattern(books, tmp_path):
    assert text_of("books/*.txt", tmp_path, separator="|") == "first\n|second\n"
    assert text_of("books/**/*.md", tmp_path) == "dritté\n"
    assert text_of("books/[ab].txt", tmp_path, separator="") == "first\nsecond\n"
    (books / "[ab].txt").write_text("this very file")
    assert text_of("books/[ab].txt", tmp_path) == "this very file"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("books/*.html", r"no file matches the pattern 'books/\*\.html'"),
        ("books/absent.txt", r"there is no file books/absent\.txt"),
        ("void", r"no text file below the folder void \(1 skipped: 1 hidden\)"),
        ("books/e*.txt", r"everything in books/e\*\.txt is empty"),
        ("books/prog*", r"books/program is not text: a NUL byte is at position 4 \(line 1\)"),
        ("pipe", r"pipe can be read only once"),
    ],
)
def test_what_cannot_be_read_is_named(books, tmp_path, path, message):
    (tmp_path / "void").mkdir()
    (tmp_path / "void" / ".keep").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=message):
        TextConfig(path=path).build(1, tmp_path / "cache")


def test_the_file_that_is_not_text_is_named_with_its_own_position(books, tmp_path):
    (books / "latin.txt").write_bytes("zwei\nZeilen à\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"books/latin\.txt is not text: the byte 0xE0, .* position 12 \(line 2\)"):
        TextConfig(path="books").build(1, tmp_path / "cache")


def test_a_file_that_may_not_be_read_is_named(books, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (books / "b.txt").chmod(0)
    with pytest.raises(UserError, match=r"cannot read .*b\.txt"):
        TextConfig(path="books").build(1, tmp_path / "cache")


@given(
    texts=st.lists(contents, min_size=1, max_size=5),
    separator=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3),
    piece=st.integers(1, 9),
    limit=st.none() | st.integers(1, 30),
)
def test_many_files_are_one_text(tmp_path_factory, texts, separator, piece, limit):
    """Whatever the pieces: the text is the join, the raw bytes are its UTF-8, and the summaries are of these."""
    folder, before = tmp_path_factory.mktemp("many"), text_file._PIECE
    files = tuple(folder / str(number) for number in range(len(texts)))
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode())
    whole = separator.join(filter(None, texts))
    made = TextFile(folder, limit, None, files, separator, folder)
    try:
        text_file._PIECE = piece
        assert "".join(made.pieces()) == whole[:limit]
        assert b"".join(made.raw_pieces()) == whole.encode()[:limit]
        assert all(made.pieces())
        if whole:
            text_file._PIECE, small = before, made.summary()
            assert made.summary() == small
            assert made.summary().length == len(whole[:limit])
            assert made.summary(raw=True).length == len(whole.encode()[:limit])
        else:
            with pytest.raises(UserError, match="is empty"):
                made.summary()
    finally:
        text_file._PIECE = before


def test_every_change_is_noticed(books, tmp_path):
    """The list of names and sizes is part of the summary, as the text is."""

    def summary():
        return TextConfig(path="books").texts(tmp_path / "cache")["train"].summary()

    seen = {summary()}
    for change in (
        lambda: (books / "b.txt").write_text("Second\n"),  # as long as before
        lambda: (books / "b.txt").rename(books / "bb.txt"),  # the same text in the same order
        lambda: (books / "more.txt").write_text("more\n"),
        lambda: (books / "empty.txt").unlink(),  # the same text
        lambda: [(books / "a.txt").write_text("one\n\ntwo"), (books / "a" / "z.txt").write_text("three")],
        lambda: [(books / "a.txt").write_text("one"), (books / "a" / "z.txt").write_text("two\n\nthree")],  # the same
    ):
        change()
        seen.add(summary())
    assert len(seen) == 7


def test_a_moved_folder_is_the_same_text(books, tmp_path):
    before = TextConfig(path="books").texts(tmp_path / "cache")["train"].summary()
    books.rename(tmp_path / "moved")
    assert TextConfig(path="moved").texts(tmp_path / "cache")["train"].summary() == before


def test_a_pattern_is_the_same_text_from_anywhere(books, tmp_path, monkeypatch):
    before = TextConfig(path="books/*.txt").texts(tmp_path / "cache")["train"].summary()
    monkeypatch.chdir(books)
    assert TextConfig(path="*.txt").texts(tmp_path / "cache")["train"].summary() == before


def test_training_on_a_folder(books, tmp_path):
    data = TextConfig(path="books", validation=0).build(4, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "tokens").glob("*/tokens.npy")
    assert data.tokenizer.decode(np.load(kept)) == text_of("books", tmp_path)
    assert data.name == "books"
