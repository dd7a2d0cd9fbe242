"""Characters: exact both ways, fast, and readable by the `tokenizers` library."""

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from instructions import instructions

from regard.config import dump, load
from regard.data import Characters, CharactersConfig, TokenizerConfig, load_tokenizer
from regard.errors import UserError

any_text = st.text(st.characters(codec="utf-8"), max_size=60)  # every character a file can hold, NUL and newline too


@given(any_text, any_text)
def test_round_trip(corpus, other):
    tokenizer = Characters.of([corpus, other])
    ids = tokenizer.encode(other)
    assert tokenizer.decode(ids) == other
    assert ids.dtype == np.int64
    assert ids.shape == (len(other),)
    assert tokenizer.size == len(set(corpus + other))


@given(st.text("abé€", max_size=6), any_text)
def test_text_is_encoded_or_refused(corpus, other):
    """No unknown character slips through as another one."""
    tokenizer = Characters.of([corpus])
    strangers = [place for place, character in enumerate(other) if character not in corpus]
    if strangers:
        with pytest.raises(UserError, match=f"position {strangers[0]} "):
            tokenizer.encode(other)
    else:
        assert tokenizer.decode(tokenizer.encode(other)) == other


@given(any_text)
@example("\n\n\r\n\u2028\u2028e\u0301\U0001f469\u200d\U0001f467\0")
def test_a_saved_tokenizer_is_the_same_here_and_in_the_library(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
    tokenizer = Characters.of([text])
    tokenizer.save(path)
    assert load_tokenizer(path) == tokenizer
    library = tokenizers.Tokenizer.from_file(str(path))
    encoded = library.encode(text, add_special_tokens=False)
    assert encoded.ids == tokenizer.encode(text).tolist()
    assert library.decode(encoded.ids, skip_special_tokens=False) == text
    assert library.get_vocab_size() == tokenizer.size


def test_numbers_follow_the_code_points_whatever_the_pieces():
    assert Characters.of(["cab", "\n", "€a"]).characters == "\nabc€"


@pytest.mark.parametrize("stranger", ["Z", "Æ", "€", "\U0001f600", "\x00", "\ud800"])
def test_an_unknown_character_is_named_with_its_place_and_the_known_ones(stranger):
    with pytest.raises(UserError) as caught:
        Characters.of(["abc\n"]).encode("ab" + stranger)
    message = str(caught.value)
    assert repr(stranger) in message
    assert f"U+{ord(stranger):04X}" in message
    assert "position 2" in message
    assert repr("\nabc") in message


@pytest.mark.parametrize("ids", [[-1], [0, 3], [2**40]])
def test_a_number_that_is_no_token_is_an_error(ids):
    with pytest.raises(UserError, match="there is no token"):
        Characters("abc").decode(ids)


def test_decode_takes_tensors_and_rows():
    tokenizer = Characters("abc")
    assert tokenizer.decode(torch.tensor([[0, 1], [2, 0]])) == "abca"
    assert tokenizer.decode([]) == ""


def test_the_widths_are_those_of_utf8():
    assert Characters("\x7f\x80\u07ff\u0800\uffff\U00010000").widths.tolist() == [1, 2, 2, 3, 3, 4]


def test_an_alphabet_has_no_character_twice():
    with pytest.raises(ValueError, match="twice"):
        Characters("aba")


def test_gaps_and_repeats_in_a_vocabulary_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    Characters("abc").save(path)
    sound = path.read_text()
    assert load_tokenizer(path) == Characters("abc")
    for damage in ('"c": 3', '"c": 1', '"cd": 2'):
        assert '"c": 2' in sound
        path.write_text(sound.replace('"c": 2', damage))
        with pytest.raises(UserError, match="not one of ours"):
            load_tokenizer(path)


def test_encoding_does_no_python_work_per_character():
    text = "To be, or not to be: that is the question.\n" * 250
    tokenizer = Characters.of([text])
    assert instructions(lambda: tokenizer.encode(text)) < len(text) / 10


def test_the_config_is_a_choice():
    assert load(TokenizerConfig, {"kind": "characters"}) == CharactersConfig()
    assert load(TokenizerConfig, dump(CharactersConfig())) == CharactersConfig()
