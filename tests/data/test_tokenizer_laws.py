"""What every tokenizer must keep: exact both ways, saved and loaded, in pieces, and token by token."""

import functools
import itertools
import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizer_kit import BYTE_BASED, CODE, CORPUS, LEARNED, PROSE, any_text, corpus_for, texts_in_pieces

from regard.config import dump, kinds, load
from regard.data import CharactersConfig, PythonConfig, TokenizerConfig, load_tokenizer
from regard.data.tokenizers import regroup
from regard.data.tokenizers.byte_tokens import content, unwritten
from regard.data.tokenizers.word_split import WORDS, WORDS_THEN_BYTES
from regard.errors import UserError

EVERY = [CharactersConfig(), *BYTE_BASED]
every_kind = pytest.mark.parametrize("config", EVERY, ids=lambda config: config.kind)
byte_based = pytest.mark.parametrize("config", BYTE_BASED, ids=lambda config: config.kind)
learned = pytest.mark.parametrize("config", LEARNED, ids=lambda config: config.kind)


@functools.cache
def small(config):
    """The tokenizer of the corpus, made once."""
    return config.build(CORPUS)


def made(config, *texts):
    return config.build(corpus_for(config, *texts)) if isinstance(config, CharactersConfig) else small(config)


def test_every_kind_is_here():
    assert {config.kind for config in EVERY} == set(kinds(TokenizerConfig))


@every_kind
@given(text=any_text)
@example(text="")
@example(text=PROSE)
@example(text=CODE)
def test_round_trip(config, text):
    tokenizer = made(config, text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.size)
    assert tokenizer.widths.shape == (tokenizer.size,)
    assert tokenizer.widths[ids].sum() == len(text.encode())


@learned
@given(corpus=any_text, text=any_text)
def test_round_trip_whatever_was_learned_from(config, corpus, text):
    tokenizer = config.build([corpus, corpus])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(corpus)) == corpus
    assert 256 <= tokenizer.size <= config.vocabulary


@every_kind
@given(text=any_text)
def test_a_saved_tokenizer_is_the_same_here_and_in_the_library(config, tmp_path_factory, text):
    path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
    tokenizer = made(config, text)
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert loaded == tokenizer
    ids = tokenizer.encode(text).tolist()
    assert loaded.encode(text).tolist() == ids
    first = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == first
    if isinstance(config, PythonConfig):
        with pytest.raises(Exception, match="PreTokenizer"):  # refused rather than read otherwise
            tokenizers.Tokenizer.from_file(str(path))
        return
    library = tokenizers.Tokenizer.from_file(str(path))
    assert library.encode(text, add_special_tokens=False).ids == ids
    assert library.decode(ids, skip_special_tokens=False) == text
    assert library.get_vocab_size() == tokenizer.size


@every_kind
@given(drawn=texts_in_pieces())
@example(drawn=(CODE, list(CODE)))
@example(drawn=(PROSE, list(PROSE)))
@example(drawn=(" a  b\n\n\nc", [" a  ", "b\n\n", "\nc"]))
def test_in_pieces_as_whole(config, drawn):
    text, pieces = drawn
    tokenizer = made(config, text)
    parts = list(regroup(pieces, tokenizer.cut))
    assert "".join(parts) == text
    numbers = [number for part in parts for number in tokenizer.encode(part).tolist()]
    assert numbers == tokenizer.encode(text).tolist()


@every_kind
@given(text=any_text, more=any_text)
def test_a_cut_holds_whatever_follows(config, text, more):
    tokenizer = made(config, text, more)
    place = tokenizer.cut(text)
    assert 0 <= place <= len(text)
    numbers = [*tokenizer.encode(text[:place]), *tokenizer.encode(text[place:] + more)]
    assert numbers == tokenizer.encode(text + more).tolist()


@learned
@given(drawn=texts_in_pieces())
def test_what_is_learned_does_not_depend_on_the_pieces(config, drawn):
    text, pieces = drawn
    assert config.build(pieces) == config.build([text])


@every_kind
@given(data=st.data())
def test_a_stream_says_what_decode_says(config, data):
    """Over any tokens, be they text or not."""
    tokenizer = small(config)
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=30) | any_text.map(_numbers(tokenizer)))
    stream = tokenizer.stream()
    given_out = ""
    for place, number in enumerate(ids):
        given_out += stream.feed(number)
        assert tokenizer.decode(ids[: place + 1]).startswith(given_out)  # never taken back
    assert given_out + stream.end() == tokenizer.decode(ids)


def _numbers(tokenizer):
    def numbers(text):
        try:
            return tokenizer.encode(text).tolist()
        except UserError:
            return tokenizer.encode(PROSE[: len(text)]).tolist()

    return numbers


@byte_based
@given(text=any_text.filter(bool))
def test_a_stream_holds_back_half_a_character_and_nothing_else(config, text):
    tokenizer = small(config)
    stream, ids = tokenizer.stream(), tokenizer.encode(text).tolist()
    for place, number in enumerate(ids):
        raw = tokenizer.decode_bytes(ids[: place + 1])
        new = stream.feed([number])
        assert "\ufffd" not in new or "\ufffd" in text
        whole = raw.decode("utf-8", "ignore")
        assert whole.endswith(new)
        assert text.startswith(whole)
    assert stream.end() == ""


@byte_based
def test_bytes_that_are_no_text_are_shown_and_kept(config):
    tokenizer = small(config)
    number = {tokenizer.decode_bytes([n]): n for n in range(256)}
    raw = b"a\xff\xe2\x82b\xf0\x9f"
    ids = [number[bytes([byte])] for byte in raw]
    assert tokenizer.decode_bytes(ids) == raw
    assert tokenizer.decode(ids) == "a\ufffd\ufffdb\ufffd"
    assert tokenizer.decode(torch.tensor([ids])) == tokenizer.decode(ids)


@every_kind
@pytest.mark.parametrize("ids", [[-1], [0, 10**6], [2**40]])
def test_a_number_that_is_no_token_is_an_error(config, ids):
    with pytest.raises(UserError, match="there is no token"):
        small(config).decode(ids)


@byte_based
def test_half_a_surrogate_pair_is_named(config):
    with pytest.raises(UserError, match=r"'\\ud800' \(U\+D800\) at position 2"):
        small(config).encode("ab\ud800")


@learned
def test_another_process_learns_the_same(config, tmp_path):
    program = (
        "import sys, pathlib; from regard.config import load; from regard.data import TokenizerConfig;"
        "corpus = pathlib.Path(sys.argv[1]).read_bytes().decode();"
        "load(TokenizerConfig, eval(sys.argv[2])).build([corpus]).save(sys.argv[3])"
    )
    (tmp_path / "corpus").write_bytes("".join(CORPUS).encode())
    small(config).save(tmp_path / "here.json")
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", program, tmp_path / "corpus", repr(dump(config)), tmp_path / "there.json"]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True)
        assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


@pytest.mark.parametrize("config", LEARNED[:2], ids=lambda config: config.kind)
def test_a_long_text_is_encoded_in_parts_as_the_library_does_it_whole(config, tmp_path):
    small(config).save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "".join(f"To be, or not to  be:{' ' * (n % 5)}naïve — 😀 {n}\n{' ' * (n % 7)}" for n in range(6000))
    assert small(config).encode(text).tolist() == library.encode(text).ids


@learned
def test_only_the_beginning_is_learned_from(config):
    beginning = f"to be {'or not to be ' * 1000}\n\n\n" * 80  # more than a megabyte
    short = type(config)(vocabulary=2000, megabytes=1)
    assert short.build([beginning, "zebra zebra\n" * 1000]) == short.build([beginning])
    assert short.build([*["to be\n\n\n"] * 10, "zebra zebra\n" * 1000]) != short.build(["to be\n\n\n"] * 10)
    assert short.learns_from(500) == 500
    assert short.learns_from(10**9) == 10**6


@learned
@pytest.mark.parametrize("vocabulary", [256, 257, 270])
def test_the_vocabulary_is_as_large_as_it_was_asked_for(config, vocabulary):
    assert type(config)(vocabulary=vocabulary).build(CORPUS).size == vocabulary


def test_the_rule_is_the_same_in_python_and_in_the_library():
    """For every character to U+3100 that Python knows, and some of the others."""
    split = tokenizers.Tokenizer.from_str(json.dumps(content([], WORDS_THEN_BYTES))).pre_tokenizer
    for character in map(chr, [*range(0x3100), *range(0x3100, 0xD800, 97), *range(0xE000, 0x110000, 997)]):
        if unicodedata.category(character) != "Cn":
            text = f"a{character}1{character}-{character} {character}{character}b\n{character} \n"
            pieces = [unwritten(piece).decode() for piece, _ in split.pre_tokenize_str(text)]
            assert pieces == WORDS.findall(text), hex(ord(character))


@learned
@pytest.mark.parametrize(("key", "value"), [("vocabulary", 255), ("megabytes", 0)])
def test_impossible_settings(config, key, value):
    with pytest.raises(UserError, match=key):
        load(TokenizerConfig, {"kind": config.kind, key: value})
    with pytest.raises(ValueError, match=key):
        type(config)(**{key: value}).build(CORPUS)


@every_kind
def test_the_config_is_a_choice(config):
    assert load(TokenizerConfig, dump(config)) == config
    assert load(TokenizerConfig, config.kind) == type(config)()


def test_a_text_that_cannot_be_cut_is_refused_before_it_fills_the_memory():
    with pytest.raises(UserError, match=r"in a row without a place to cut it \('aaa.* --data.tokenizer bytes"):
        list(regroup(itertools.repeat("a" * 1000), small(LEARNED[0]).cut, held_at_most=10_000))
