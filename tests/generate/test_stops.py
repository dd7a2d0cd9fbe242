"""Stop strings: cutting the finished text, whatever pieces it came in."""

import doctest

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from regard.generate import constraints as module
from regard.generate.constraints import StopStrings

words = st.text("ab", min_size=2, max_size=4) | st.text("abc", min_size=1, max_size=3)
pieces_of = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=12)


def cut(text: str, strings: list[str]) -> str:
    """The definition: character by character, the text ends as soon as it contains a stop string."""
    for end in range(1, len(text) + 1):
        found = [s for s in strings if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@settings(max_examples=300)
@given(pieces_of, st.lists(words, max_size=3))
@example(["xa", "b", "y"], ["xaby", "ab"])  # the one that ends first,
@example(["xaby"], ["xaby", "ab"])  # in one piece too
@example(["xab"], ["ab", "xab"])  # of those that end together the one that begins first
def test_pieces_joined_are_the_cut_text(pieces: list[str], strings: list[str]) -> None:
    stops = StopStrings(strings)
    got, whole = "", "".join(pieces)
    for i, piece in enumerate(pieces):
        got += stops.feed(piece)
        assert cut(whole, strings).startswith(got)
        so_far = "".join(pieces[: i + 1])
        assert (stops.found is not None) == (cut(so_far, strings) != so_far or so_far.endswith(tuple(strings)))
        if stops.found is None:  # nothing is held back without need
            held = so_far[len(got) :]
            assert not held or any(s.startswith(held) for s in strings)
    assert got + stops.end() == cut(whole, strings)
    if stops.found is not None:
        assert whole.startswith(got + stops.found)


def test_an_empty_one_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_the_example_is_true():
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0
