"""Reading text in pieces: nothing lost at the seams, and the place where a file stops being text is exact."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.data.texts import text_file
from regard.data.texts.text_file import TextFile
from regard.errors import UserError

lines = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("reading") / "text.txt"


@pytest.fixture
def _restore_piece():
    before = text_file._PIECE
    yield
    text_file._PIECE = before


@pytest.mark.usefixtures("_restore_piece")
class TestSeams:
    @given(text=lines, piece=st.integers(1, 9), limit=st.none() | st.integers(1, 50))
    @example(text="\r\n\r\né€\U0001f600", piece=1, limit=None)
    def test_pieces_join_to_the_text(self, path, text, piece, limit):
        text_file._PIECE = piece
        path.write_bytes(text.encode())
        assert "".join(TextFile(path, limit).pieces()) == text[:limit]

    @given(
        before=lines,
        bad=st.sampled_from([b"\xff", b"\xc3(", b"\xe2\x82", b"\xed\xa0\x80", b"\0"]),
        after=lines,
        piece=st.integers(1, 9),
    )
    def test_the_first_wrong_byte_is_named(self, path, before, bad, after, piece):
        text_file._PIECE = piece
        content = before.encode() + bad + after.encode()
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            list(TextFile(path).pieces())
        position, line = len(before.encode()), before.encode().count(b"\n") + 1
        assert f"position {position} (line {line})" in str(caught.value)
        assert str(path) in str(caught.value)

    def test_the_summary_does_not_depend_on_the_pieces(self, path):
        path.write_text("naïve €\n" * 10, encoding="utf-8")
        text_file._PIECE = 3
        small = TextFile(path).summary()
        text_file._PIECE = 1 << 20
        assert TextFile(path).summary() == small
        assert small.length == 80


def test_an_empty_file(path):
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"text\.txt is empty"):
        TextFile(path).summary()


def test_a_missing_file(path):
    with pytest.raises(UserError, match=r"no file .*absent\.txt"):
        TextFile(path.with_name("absent.txt")).summary()


def test_a_folder(path):
    with pytest.raises(UserError, match="is a folder"):
        TextFile(path.parent).summary()
