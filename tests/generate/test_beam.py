"""Beam search and its company: equal to their definitions, whatever the batch."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seq2seq_kit import MARKS, WORDS, Small, logprobs, naive_beam_search, own_logprob, padded, sentences
from torch import Tensor

from regard.data.translation.pairs import Specials
from regard.errors import UserError
from regard.generate import BeamSearch, Hypothesis, OutputConstraints, Sampling, decode_seq2seq
from regard.generate.beam import assign_rows, top_candidates
from regard.generate.constraints import logsumexp
from regard.models import Seq2SeqConfig, TransformerConfig
from regard.models.bridges import BahdanauConfig, FixedConfig, LuongConfig

GREEDY = Sampling(temperature=0)
seeds = st.integers(0, 50)
searches = st.builds(
    BeamSearch,
    beams=st.integers(1, 6),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0, -0.5]),
    formula=st.sampled_from(["mean", "gnmt"]),
    early=st.booleans(),
)
lengths = st.tuples(st.integers(0, 5), st.integers(1, 8)).map(lambda pair: (min(pair), max(pair)))


def same(found: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [(one.tokens, one.ended) for one in found] == [(one.tokens, one.ended) for one in wanted]
    for name in ("score", "logprob"):
        assert [getattr(one, name) for one in found] == pytest.approx([getattr(one, name) for one in wanted], abs=1e-9)


@given(seeds, sentences, searches, lengths)
def test_it_is_the_search_of_the_definition_for_every_sentence_of_a_batch(seed, sources, search, bounds):
    model: Any
    model, constraints = Small(seed), OutputConstraints.of(MARKS, *bounds)
    found = decode_seq2seq(model, *padded(sources), constraints, search, search.beams)
    for source, texts in zip(sources, found, strict=True):
        same(texts, naive_beam_search(model, source, constraints, search))


def real(name: str, seed: int) -> Any:
    """A model of ours, with weights far from even."""
    sizes: dict[str, Any] = {"vocabulary": WORDS + 3, "context": 40, "width": 8, "dropout": 0.0}
    bridges = {"fixed": FixedConfig(), "bahdanau": BahdanauConfig(), "luong": LuongConfig()}
    torch.manual_seed(seed)
    if name == "transformer":
        model = TransformerConfig(**sizes, layers=2, heads=2, tied=False).build()
    else:
        model = Seq2SeqConfig(**sizes, cell="lstm", layers=2, tied=False, attention=bridges[name]).build()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) / parameter.shape[-1] ** 0.5
    return model.double().eval()


@settings(max_examples=8)
@given(st.data())
@pytest.mark.parametrize("name", ["transformer", "fixed", "bahdanau", "luong"])
def test_every_model_that_has_a_source_is_searched_alike(name, data):
    """Caches, grown buffers, hidden states and shared memories, through beams that move and sources that leave."""
    model, constraints = real(name, data.draw(seeds)), OutputConstraints.of(MARKS, *data.draw(lengths))
    sources, search = data.draw(sentences), data.draw(searches)
    found = decode_seq2seq(model, *padded(sources), constraints, search, search.beams)
    greedy = decode_seq2seq(model, *padded(sources), constraints, GREEDY)
    for source, texts, (one,) in zip(sources, found, greedy, strict=True):
        same(texts, naive_beam_search(model, source, constraints, search))
        same([one], decode_seq2seq(model, *padded([source]), constraints, GREEDY)[0])
        assert one.logprob == pytest.approx(own_logprob(model, source, one), abs=1e-8)


@given(seeds, sentences, searches, lengths)
def test_texts_are_distinct_sorted_and_scored_by_the_model_itself(seed, sources, search, bounds):
    model: Any
    model, constraints = Small(seed), OutputConstraints.of(MARKS, *bounds)
    for source, texts in zip(
        sources, decode_seq2seq(model, *padded(sources), constraints, search, search.beams), strict=True
    ):
        assert 1 <= len(texts) <= search.beams
        assert len({(*one.tokens, one.ended) for one in texts}) == len(texts)
        assert [one.score for one in texts] == sorted((one.score for one in texts), reverse=True)
        for one in texts:
            assert one.logprob == pytest.approx(own_logprob(model, source, one), abs=1e-8)
            assert one.score == pytest.approx(one.logprob / search.weight(len(one.tokens) + one.ended))
            assert constraints.min_length <= len(one.tokens) <= constraints.max_length
            assert not set(one.tokens) & set(MARKS)


@pytest.mark.parametrize("early", [False, True])
def test_sources_that_are_done_wait_for_others_unchanged(early):
    """Of many sources a few are done first, and stay in the batch until more are."""
    noise = torch.Generator().manual_seed(4)
    counts = torch.randint(7, (60,), generator=noise).tolist()
    sources = [torch.randint(WORDS, (n,), generator=noise).tolist() for n in counts]
    model: Any
    model, constraints, search = Small(2), OutputConstraints.of(MARKS, 0, 12), BeamSearch(3, 2.0, early=early)
    together = decode_seq2seq(model, *padded(sources), constraints, search, 3)
    for source, texts in zip(sources, together, strict=True):
        same(texts, decode_seq2seq(model, *padded([source]), constraints, search, 3)[0])


@given(seeds, sentences, lengths)
def test_one_beam_is_greedy(seed, sources, bounds):
    model: Any
    model, constraints = Small(seed), OutputConstraints.of(MARKS, *bounds)
    one = decode_seq2seq(model, *padded(sources), constraints, BeamSearch(1))
    for a, b in zip(one, decode_seq2seq(model, *padded(sources), constraints, GREEDY), strict=True):
        assert a[0].tokens == b[0].tokens
        assert a[0].logprob == pytest.approx(b[0].logprob, abs=1e-9)


@given(seeds, st.sampled_from([0.0, 1.0]))
def test_a_wide_beam_finds_what_looking_at_everything_finds(seed, penalty):
    model: Any
    model, constraints = Small(seed, vocabulary=6), OutputConstraints.of(Specials.after(3), 0, 4)
    source, lengths = torch.tensor([[0, 2, 1, 5]]), torch.tensor([4])
    search = BeamSearch(3 + 9 + 27 + 81 + 4, penalty)
    found = decode_seq2seq(model, source, lengths, constraints, search, search.beams)[0]
    everything = {}
    for count in range(5):
        for text in itertools.product(range(3), repeat=count):
            tokens = [*text, 5] if count < 4 else list(text)
            with torch.no_grad():
                given = model(torch.tensor([[4, *tokens[:-1]]]), source, lengths)[0].log_softmax(-1)
            total = float(given.gather(1, torch.tensor(tokens)[:, None]).sum())
            everything[text] = total / search.weight(len(tokens))
    ranked = sorted(everything, key=lambda text: -everything[text])
    assert [tuple(one.tokens) for one in found] == ranked
    assert [one.score for one in found] == pytest.approx([everything[text] for text in ranked])


@given(seeds, sentences, st.integers(1, 4), st.integers(0, 2**40), st.sampled_from([0.7, 1.5]))
def test_what_is_drawn_does_not_depend_on_the_batch(seed, sources, samples, draw, temperature):
    model: Any
    model, constraints, sampling = Small(seed, wild=1.0), OutputConstraints.of(MARKS, 0, 8), Sampling(temperature)
    together = decode_seq2seq(model, *padded(sources), constraints, sampling, count=samples, seed=draw)
    for source, texts in zip(sources, together, strict=True):
        same(texts, decode_seq2seq(model, *padded([source]), constraints, sampling, count=samples, seed=draw)[0])
        for one in texts:
            assert one.logprob == pytest.approx(own_logprob(model, source, one), abs=1e-8)


def test_long_draws_do_not_depend_on_the_batch_either():
    """More tokens than are drawn at once, while sources leave."""
    model: Any
    model, constraints = Small(6, wild=1.0), OutputConstraints.of(MARKS, 0, 300)
    model.out.bias.data[MARKS.end] -= 2.5
    sources = [[i % WORDS, (3 * i) % WORDS] for i in range(8)]
    together = decode_seq2seq(model, *padded(sources), constraints, Sampling(1.0), count=2, seed=5)
    ends = [max(len(one.tokens) for one in texts) for texts in together]
    assert min(ends) < 256 < max(ends)
    for source, texts in zip(sources, together, strict=True):
        same(texts, decode_seq2seq(model, *padded([source]), constraints, Sampling(1.0), count=2, seed=5)[0])


def test_draws_follow_the_models_probabilities():
    model: Any
    model, constraints, source = Small(3, wild=1.0), OutputConstraints.of(MARKS, 0, 1), [1, 4]
    chances = torch.tensor(logprobs(model, source, [])).exp()
    chances[[MARKS.pad, MARKS.begin]] = 0
    counts = torch.zeros(WORDS + 3)
    for seed in range(1000):
        (one,) = decode_seq2seq(model, *padded([source]), constraints, Sampling(1.0), seed=seed)[0]
        counts[one.tokens[0] if one.tokens else MARKS.end] += 1
    assert float((counts / 1000 - chances / chances.sum()).abs().max()) < 0.05


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([3, 512, 513, 576, 700, 1300]),
    st.integers(1, 9),
    st.integers(0, 999),
)
def test_the_best_offers_are_those_of_sorting_everything(batch, beams, vocabulary, count, seed):
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, beams, vocabulary, generator=noise, dtype=torch.float64)
    logits[..., int(torch.randint(vocabulary, (), generator=noise))] = float("-inf")
    logits[..., -1] += 4  # the last block is not whole, and what is in it comes once
    scores = torch.randn(batch, beams, generator=noise, dtype=torch.float64)
    total = logsumexp(logits.flatten(0, 1)).view(batch, beams)
    torch.testing.assert_close(total, logits.logsumexp(-1))
    count = min(count, beams * (vocabulary - 1))
    values, parents, tokens = top_candidates(logits, total, scores, count)
    wanted = (logits.log_softmax(-1) + scores[..., None]).flatten(1).topk(count)
    torch.testing.assert_close(values, wanted.values)
    assert torch.equal(parents * vocabulary + tokens, wanted.indices)


@given(st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_continuation_keeps_its_parents_row_when_it_can(parents):
    given = torch.tensor(parents)
    order = assign_rows(given)
    for row, before, seated in zip(order.tolist(), parents, given.gather(1, order).tolist(), strict=True):
        assert sorted(row) == list(range(5))
        assert sum(place != parent for place, parent in enumerate(seated)) == 5 - len(set(before))


class Whole(NamedTuple):
    shared: tuple[Tensor, Tensor]
    own: tuple[Tensor]
    beams: int


class Marian:
    """Another library's model behind our protocol, without a cache: the text so far is its state."""

    def __init__(self, model: Any):
        self.model = model

    def start(self, batch: int, capacity: int, *, source: Tensor, source_lengths: Tensor, beams: int = 1) -> Whole:
        mask = torch.arange(source.shape[1]) < source_lengths[:, None]
        seen = self.model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
        return Whole((seen, mask), (source.new_zeros(batch * beams, 0),), beams)

    def step(self, tokens: Tensor, state: Whole) -> tuple[Tensor, Whole]:
        seen, mask = (part.repeat_interleave(state.beams, 0) for part in state.shared)
        text = torch.cat((state.own[0], tokens), 1)
        made = self.model(encoder_outputs=(seen,), attention_mask=mask, decoder_input_ids=text, use_cache=False)
        return made.logits[:, -1:].clone(), state._replace(own=(text,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("least", "most"), [(0, 12), (12, 12), (3, 9)])
@pytest.mark.parametrize(("early", "penalty"), [(False, 1.0), (True, 1.0), (False, 0.0), (True, 2.0)])
def test_it_finds_what_transformers_finds(least, most, early, penalty):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    words = 800  # enough for blocks of tokens
    marks = Specials.after(words)
    sizes = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    }
    config = transformers.MarianConfig(
        vocab_size=words + 3, d_model=16, **sizes, max_position_embeddings=32, pad_token_id=marks.pad, init_std=0.7,
        eos_token_id=marks.end, decoder_start_token_id=marks.begin, forced_eos_token_id=None, scale_embedding=False,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).double().eval()
    theirs.final_logits_bias[:, marks.end] = 11.0  # ends come at many lengths
    sources, lengths = padded_with(marks, [[4, 7, 1], [300, 2], [799, 4, 4, 4, 17, 30], []])
    made = theirs.generate(
        input_ids=sources, attention_mask=torch.arange(sources.shape[1]) < lengths[:, None], num_beams=5,
        num_return_sequences=5, early_stopping=early, length_penalty=penalty, do_sample=False, max_length=most + 1,
        min_length=least + 1, return_dict_in_generate=True, output_scores=True,
        bad_words_ids=[[marks.pad], [marks.begin]],
    )  # fmt: skip
    search, constraints = BeamSearch(5, penalty, early=early), OutputConstraints.of(marks, least, most)
    found = decode_seq2seq(cast(Any, Marian(theirs)), sources, lengths, constraints, search, 5)
    texts = made.sequences.view(4, 5, -1).tolist()
    scores = made.sequences_scores.view(4, 5).tolist()
    seen = set()
    for mine, yours, marked in zip(found, texts, scores, strict=True):
        clean = [[token for token in text[1:] if token not in marks] for text in yours]
        assert [one.tokens for one in mine] == clean
        assert [one.score for one in mine] == pytest.approx(marked, abs=1e-5)
        seen |= {(len(one.tokens), one.ended) for one in mine}
    assert len(seen) > 4 or least == most  # the comparison is of texts of many lengths


def padded_with(marks: Specials, sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(source) + 1 for source in sources])
    rows = [[*source, marks.end] + [marks.pad] * (int(lengths.max()) - len(source) - 1) for source in sources]
    return torch.tensor(rows), lengths


def test_more_texts_than_beams_are_refused():
    with pytest.raises(UserError, match="3 beams finds 1 to 3 texts, not 4"):
        decode_seq2seq(cast(Any, Small()), *padded([[1]]), OutputConstraints.of(MARKS, 0, 4), BeamSearch(3), 4)
    with pytest.raises(ValueError, match="beams must be at least 1"):
        BeamSearch(0)


def test_long_texts_outgrow_the_first_room():
    model, constraints = real("transformer", 3), OutputConstraints.of(MARKS, 35, 40)
    sources = [[1, 2, 3], [4], [5, 6]]
    for source, texts in zip(
        sources, decode_seq2seq(model, *padded(sources), constraints, BeamSearch(4), 4), strict=True
    ):
        for one in texts:
            assert len(one.tokens) >= 35
            assert one.logprob == pytest.approx(own_logprob(model, source, one), abs=1e-8)
