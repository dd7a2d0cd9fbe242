"""Writing: each prompt's text is its own, streamed pieces joined are the whole, a stop cuts the unstopped text."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from writing_kit import VOCABULARY, samplings, seeds, wild

from regard.attention import WindowConfig
from regard.data.tokenizers import Bytes, Characters
from regard.errors import UserError
from regard.generate import Decoding, Prompt, Sampling, TextGenerator
from regard.generate.text import Pace
from regard.models import GPTConfig

TOKENIZER = Characters("abcdefgh .\n")
CONFIG = GPTConfig(
    vocabulary=VOCABULARY, context=12, layers=2, heads=2, width=16, attention=WindowConfig(4), global_every=2
)
AUTHOR = TextGenerator(wild(CONFIG, 0), TOKENIZER, CONFIG.context, Sampling(temperature=1.5), count=20)
BYTES = TextGenerator(wild(replace(CONFIG, vocabulary=256), 0), Bytes(), CONFIG.context, Sampling(temperature=9.0))

letters = st.text(TOKENIZER.characters, min_size=1, max_size=15)
some = st.builds(Prompt, letters.map(lambda text: tuple(TOKENIZER.encode(text).tolist())), st.integers(0, 2))


def first_cut(text: str, stops: tuple[str, ...]) -> str:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(
    st.lists(some, min_size=1, max_size=5),
    samplings,
    seeds,
    st.lists(st.text(TOKENIZER.characters, min_size=1, max_size=2), max_size=3),
    st.integers(1, 5),
    st.sampled_from([1, 1, 3, 50]),
)
def test_a_stop_cuts_the_text_and_nothing_else_changes_it(prompts, sampling, seed, stops, batch, every):
    plain = replace(AUTHOR, sampling=sampling, seed=seed)
    author = replace(plain, stops=tuple(stops), batch=batch, every=every)
    joined, ended = [""] * len(prompts), [0] * len(prompts)
    for number, piece, row in author.write(prompts):
        joined[number] += piece
        assert row.text == joined[number]
        assert not ended[number]
        ended[number] += row.done
    assert all(ended)
    author = replace(author, pace=Pace())
    rows = author.texts(prompts)
    assert author.pace.written == sum(row.tokens for row in rows)
    for prompt, row, text in zip(prompts, rows, joined, strict=True):
        tokens = Decoding(plain.model, [prompt.tokens], 20, sampling, seed=seed, streams=[prompt.stream], context=12)
        whole = TOKENIZER.decode([tokens.next().item() for _ in range(20)])
        assert text == row.text == first_cut(whole, author.stops)
        assert (row.stop is None) == (text == whole)
        if row.stop is None:
            assert row.tokens == 20
        else:
            assert whole.startswith(text + row.stop)
            assert row.tokens == len(text) + len(row.stop)  # it stopped as soon as it could


def test_the_pace_counts_what_was_read_and_written():
    author = replace(AUTHOR, pace=Pace())
    author.texts([Prompt((1, 2, 3)), Prompt((1, 2, 3), 1), Prompt((4,) * 40)])
    assert (author.pace.read, author.pace.written, author.pace.first) == (3 + 12, 20 * 3, 3)
    assert author.pace.reading > 0
    assert author.pace.writing > 0
    assert str(author.pace).startswith("read 15 tokens at ")
    assert "wrote 60 tokens at " in str(author.pace)


def test_the_pace_of_writing_is_that_of_the_tokens_after_the_first():
    assert str(Pace(read=3, reading=0.5, written=22, first=2, writing=2.0)) == (
        "read 3 tokens at 6/s, then wrote 22 tokens at 10/s"
    )
    assert str(Pace(read=3, reading=0.5, written=1, first=1)) == "read 3 tokens at 6/s, then wrote 1 token"


def test_what_looks_like_a_stop_to_the_last_is_not_lost():
    [plain] = AUTHOR.texts([Prompt((1,))])
    [row] = replace(AUTHOR, stops=(plain.text[-3:] + "?",)).texts([Prompt((1,))])
    assert (row.text, row.stop) == (plain.text, None)


@given(seeds, st.integers(1, 40), st.sampled_from([(), ("a",)]))
def test_half_characters_are_held_back_and_not_lost(seed, count, stops):
    """Tokens that are bytes, mostly no UTF-8 at all."""
    author = replace(BYTES, seed=seed, count=count, stops=stops)
    pieces = [piece for _, piece, _ in author.write([Prompt((65,))])]
    decoding = Decoding(BYTES.model, [[65]], count, BYTES.sampling, seed=seed, context=12)
    whole = BYTES.tokenizer.decode([decoding.next().item() for _ in range(count)])
    assert "".join(pieces) == first_cut(whole, stops)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"batch": 0}, {"stops": ("a", "")}], ids=str)
def test_impossible_wishes_are_refused(wrong):
    with pytest.raises(UserError, match=r"at least|empty"):
        replace(AUTHOR, **wrong)
