"""Beam search with language models: equal to its definition, also past the context and with stop strings."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from decoding_kit import VOCABULARY, models, prompts, wild
from hypothesis import given, settings
from seq2seq_kit import search_by_definition
from torch import Tensor, nn

from regard.attention import WindowConfig
from regard.data.tokenizers import Bytes, Characters
from regard.errors import UserError
from regard.generate import (
    BeamSearch,
    BeamSearcher,
    CachedLanguageModel,
    Decoder,
    Hypothesis,
    OutputConstraints,
    Prompt,
    Sampling,
    TextGenerator,
    sampling_decoder,
)
from regard.generate.constraints import StopCondition
from regard.models import ConvolutionConfig, GPTConfig, RecurrentConfig
from regard.models.base import LanguageModel, ModelConfig, State

TOKENIZER = Characters("abcdefgh .\n")
searches = st.builds(
    BeamSearch,
    beams=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early=st.booleans(),
)


def search_text(
    model: LanguageModel, rows: list[list[int]], constraints: OutputConstraints, search: BeamSearch, nbest: int = 1
) -> list[list[Hypothesis]]:
    searcher = BeamSearcher(search, constraints, nbest)
    for _ in Decoder(CachedLanguageModel(model, rows, constraints.max_length), searcher, constraints.max_length):
        pass
    return searcher.hypotheses()


def next_logprobs(model: LanguageModel, prompt: list[int], tokens: list[int]) -> list[float]:
    """By a full pass over the context: a row that fills it continues from the latest half."""
    context, window = model.config.context, prompt[-model.config.context :]
    for token in tokens:
        if len(window) == context:
            window = window[len(window) - max(1, context // 2) + 1 :]
        window = [*window, token]
    with torch.no_grad():
        return model(torch.tensor([window]))[0, -1].log_softmax(-1).tolist()


def same(found: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    """The same hypotheses; of two that differ in their scores by rounding alone, either may be first."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.tokens, one.ended) == (other.tokens, other.ended) or abs(one.score - other.score) < 1e-12
    for name in ("score", "logprob"):
        assert [getattr(one, name) for one in found] == pytest.approx([getattr(one, name) for one in wanted], abs=1e-9)


@settings(max_examples=25)
@given(models(), st.lists(prompts, min_size=1, max_size=4), searches, st.integers(1, 12), st.data())
def test_it_is_the_search_of_the_definition_for_every_prompt_of_a_batch(model, rows, search, length, data):
    """Windows, grouped heads, n-grams, ragged and equal prompts, texts past the context, prompts that leave."""
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=1), label="again")
    end = data.draw(st.none() | st.integers(0, VOCABULARY - 1), label="end")
    letters = st.text(TOKENIZER.characters, min_size=1, max_size=2)
    stops = data.draw(st.lists(letters, max_size=2), label="stops") if end is None else []
    stop = StopCondition(TOKENIZER, stops) if stops else None
    constraints = OutputConstraints(length, end=end, stop=stop)
    found = search_text(model, rows, constraints, search, search.beams)
    for prompt, hypotheses in zip(rows, found, strict=True):
        wanted = search_by_definition(lambda tokens, p=prompt: next_logprobs(model, p, tokens), constraints, search)
        same(hypotheses, wanted)


SMALL: list[ModelConfig] = [
    GPTConfig(vocabulary=3, context=4, layers=2, heads=2, width=16, zero_init=False),
    RecurrentConfig(vocabulary=3, context=4, width=16),
    ConvolutionConfig(vocabulary=3, context=4, layers=2, width=16),
]


def small(config: ModelConfig) -> LanguageModel:
    torch.manual_seed(3)
    model = config.build().double().eval()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) / parameter.shape[-1] ** 0.5
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("config", SMALL, ids=lambda config: type(config).__name__)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("stops", [(), ("b",), ("ca",)], ids=str)
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(config, penalty, stops):
    model, tokenizer, length = small(config), Characters("abc"), 4
    stop = StopCondition(tokenizer, stops) if stops else None
    search = BeamSearch(3**length, penalty)
    found = search_text(model, [[0, 2]], OutputConstraints(length, stop=stop), search, search.beams)[0]
    scores = {}
    for tokens in itertools.product(range(3), repeat=length):
        text = tokenizer.decode(tokens)
        ends = [text.index(string) + len(string) for string in stops if string in text]
        tokens = tokens[: min(ends, default=length)]
        total = sum(next_logprobs(model, [0, 2], list(tokens[:i]))[token] for i, token in enumerate(tokens))
        scores[tokens] = total / search.weight(len(tokens))
    ranked = sorted(scores, key=lambda tokens: -scores[tokens])
    assert [tuple(one.tokens) for one in found] == ranked
    assert [one.score for one in found] == pytest.approx([scores[tokens] for tokens in ranked])
    assert [one.ended for one in found] == [tokenizer.decode(tokens).endswith(stops or "never") for tokens in ranked]


@given(models(), prompts, st.integers(1, 30))
def test_one_beam_is_greedy(model, prompt, length):
    (found,) = search_text(model, [prompt], OutputConstraints(length), BeamSearch(1))[0]
    assert found.tokens == [int(t) for t in sampling_decoder(model, [prompt], length, Sampling(temperature=0))]


CONFIG = GPTConfig(
    vocabulary=VOCABULARY, context=12, layers=2, heads=2, width=16, attention=WindowConfig(4), global_every=2
)
GENERATOR = TextGenerator(wild(CONFIG, 0), TOKENIZER, Sampling(), length=10, search=BeamSearch(4))


@settings(max_examples=15)
@given(
    st.lists(prompts, min_size=1, max_size=3),
    st.lists(st.text(TOKENIZER.characters, min_size=1, max_size=2), max_size=2),
    st.integers(1, 7),
)
def test_a_sample_of_a_prompt_is_a_rank_of_its_search(rows, stops, batch):
    generator = replace(GENERATOR, stops=tuple(stops), batch=batch)
    texts = generator.texts([Prompt(tuple(row), rank) for row in rows for rank in range(3)])
    stop = StopCondition(TOKENIZER, stops) if stops else None
    assert GENERATOR.search is not None
    found = search_text(GENERATOR.model, rows, OutputConstraints(10, stop=stop), GENERATOR.search, 3)
    for text, hypothesis in zip(texts, itertools.chain(*found), strict=True):
        whole = TOKENIZER.decode(hypothesis.tokens)
        assert text.done
        assert text.tokens == len(hypothesis.tokens)
        assert (text.stop is not None) == hypothesis.ended
        assert whole == text.text + (text.stop or "")


def test_stop_strings_may_straddle_tokens_and_characters():
    """Byte tokens: a stop string of several bytes completes inside a character's bytes of its own."""
    stop = StopCondition(Bytes(), ["né", "x"])
    assert stop.window == 3
    assert stop(list("né".encode()))
    assert not stop(list("né".encode())[:-1])
    assert stop(list(b"abnx"))
    assert not stop(list(b"xabc"))  # a token ago at the latest: the search has looked at each one


def test_more_texts_than_were_found_are_refused():
    few = replace(GENERATOR, model=wild(replace(CONFIG, vocabulary=2), 0), tokenizer=Characters("ab"), length=1)
    with pytest.raises(UserError, match="found 2 texts, not 3"):
        few.texts([Prompt((1,), rank) for rank in range(3)])
    with pytest.raises(UserError, match="4 beams finds 1 to 4 texts, not 5"):
        GENERATOR.texts([Prompt((1,), 4)])


class HuggingFace(nn.Module):
    """Another library's language model behind our contract, without a cache: the text so far is its state."""

    graphable = False

    def __init__(self, model: Any, context: int):
        super().__init__()
        self.model, self.config = model, CONFIG
        self.config = replace(CONFIG, context=context)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        return State(torch.zeros(batch, dtype=torch.long), (torch.zeros(batch, 0, dtype=torch.long),))

    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        text = torch.cat((state.layers[0], tokens), 1)
        return self.model(input_ids=text).logits[:, -1:].clone(), state._replace(layers=(text,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("early", "penalty"), [(False, 1.0), (True, 1.0), (False, 0.0), (True, 2.0)])
def test_it_finds_what_transformers_finds(early, penalty, ends):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    vocabulary, length, end = 800, 12, 7  # enough tokens for blocks of them
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.7,
        bos_token_id=None, eos_token_id=end if ends else None, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    rows = torch.randint(8, vocabulary, (4, 5))
    made = theirs.generate(
        input_ids=rows, attention_mask=torch.ones_like(rows), num_beams=5, num_return_sequences=5, do_sample=False,
        early_stopping=early, length_penalty=penalty, max_new_tokens=length, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    constraints = OutputConstraints(length, end=end if ends else None)
    model: Any = HuggingFace(theirs, 64)
    found = search_text(model, rows.tolist(), constraints, BeamSearch(5, penalty, early=early), 5)
    texts, scores = made.sequences[:, 5:].view(4, 5, -1).tolist(), made.sequences_scores.view(4, 5).tolist()
    for mine, yours, marked in zip(found, texts, scores, strict=True):
        cut = [text[: text.index(end)] if ends and end in text else text for text in yours]
        assert [one.tokens for one in mine] == cut
        assert [one.score for one in mine] == pytest.approx(marked, abs=1e-5)
