"""Writing: each prompt's text is its own, streamed pieces joined are the whole, a stop cuts the unstopped text."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from decoding_kit import VOCABULARY, samplings, seeds, wild
from hypothesis import given

from regard.attention import WindowConfig
from regard.data.tokenizers import Bytes, Characters
from regard.errors import UserError
from regard.generate import Prompt, Sampling, TextGenerator, sampling_decoder
from regard.generate.text import Throughput
from regard.models import GPTConfig

TOKENIZER = Characters("abcdefgh .\n")
CONFIG = GPTConfig(
    vocabulary=VOCABULARY, context=12, layers=2, heads=2, width=16, attention=WindowConfig(4), global_every=2
)
GENERATOR = TextGenerator(wild(CONFIG, 0), TOKENIZER, Sampling(temperature=1.5), length=20)
BYTES = TextGenerator(wild(replace(CONFIG, vocabulary=256), 0), Bytes(), Sampling(temperature=9.0))

letters = st.text(TOKENIZER.characters, min_size=1, max_size=15)
some = st.builds(Prompt, letters.map(lambda text: tuple(TOKENIZER.encode(text).tolist())), st.integers(0, 2))


def first_cut(text: str, stops: tuple[str, ...]) -> str:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(
    st.lists(some, min_size=1, max_size=4),
    samplings,
    seeds,
    st.lists(st.text(TOKENIZER.characters, min_size=1, max_size=2), max_size=3),
    st.integers(1, 5),
    st.sampled_from([1, 1, 3, 50]),
)
def test_a_stop_cuts_the_text_and_nothing_else_changes_it(prompts, sampling, seed, stops, batch, every):
    plain = replace(GENERATOR, sampling=sampling, seed=seed)
    generator = replace(plain, stops=tuple(stops), batch=batch, sync_every=every)
    joined, ended = [""] * len(prompts), [0] * len(prompts)
    for number, piece, row in generator.stream(prompts):
        joined[number] += piece
        assert row.text == joined[number]
        assert not ended[number]
        ended[number] += row.done
    assert all(ended)
    generator = replace(generator, throughput=Throughput())
    rows = generator.texts(prompts)
    assert generator.throughput.generated_tokens == sum(row.tokens for row in rows)
    for prompt, row, text in zip(prompts, rows, joined, strict=True):
        tokens = sampling_decoder(plain.model, [prompt.tokens], 20, sampling, seed=seed, streams=[prompt.sample])
        whole = TOKENIZER.decode([int(token) for token in tokens])
        assert text == row.text == first_cut(whole, generator.stops)
        assert (row.stop is None) == (text == whole)
        if row.stop is None:
            assert row.tokens == 20
        else:
            assert whole.startswith(text + row.stop)
            assert row.tokens == len(text) + len(row.stop)  # it stopped as soon as it could


def test_throughput_counts_prompt_and_generated_tokens():
    generator = replace(GENERATOR, throughput=Throughput())
    generator.texts([Prompt((1, 2, 3)), Prompt((1, 2, 3), 1), Prompt((4,) * 40)])
    assert (
        generator.throughput.prompt_tokens,
        generator.throughput.generated_tokens,
        generator.throughput.first_tokens,
    ) == (3 + 12, 20 * 3, 3)
    assert generator.throughput.prefill_seconds > 0
    assert generator.throughput.decode_seconds > 0
    assert str(generator.throughput).startswith("prompt: 15 tokens at ")
    assert "generated: 60 tokens at " in str(generator.throughput)


def test_decoding_speed_is_that_of_the_tokens_after_the_first():
    assert str(
        Throughput(prompt_tokens=3, prefill_seconds=0.5, generated_tokens=22, first_tokens=2, decode_seconds=2.0)
    ) == ("prompt: 3 tokens at 6/s; generated: 22 tokens at 10/s")
    assert str(Throughput(prompt_tokens=3, prefill_seconds=0.5, generated_tokens=1, first_tokens=1)) == (
        "prompt: 3 tokens at 6/s; generated: 1 token"
    )


def test_what_looks_like_a_stop_to_the_last_is_not_lost():
    [plain] = GENERATOR.texts([Prompt((1,))])
    [row] = replace(GENERATOR, stops=(plain.text[-3:] + "?",)).texts([Prompt((1,))])
    assert (row.text, row.stop) == (plain.text, None)


@given(seeds, st.integers(1, 40), st.sampled_from([(), ("a",)]))
def test_half_characters_are_held_back_and_not_lost(seed, count, stops):
    """Tokens that are bytes, mostly no UTF-8 at all."""
    generator = replace(BYTES, seed=seed, length=count, stops=stops)
    pieces = [piece for _, piece, _ in generator.stream([Prompt((65,))])]
    tokens = sampling_decoder(BYTES.model, [[65]], count, BYTES.sampling, seed=seed)
    whole = BYTES.tokenizer.decode([int(token) for token in tokens])
    assert "".join(pieces) == first_cut(whole, stops)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"batch": 0}, {"stops": ("a", "")}], ids=str)
def test_impossible_wishes_are_refused(wrong):
    with pytest.raises(UserError, match=r"at least|empty"):
        replace(GENERATOR, **wrong)
