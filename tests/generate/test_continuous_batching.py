"""Continuous batching: every text as alone, no step more than an ideal scheduler needs, a state of the batch's size."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import torch
from decoding_kit import VOCABULARY, models, naive_decode, samplings, seeds, wild
from hypothesis import given
from torch.utils._pytree import tree_leaves

from regard.attention import WindowConfig
from regard.data.tokenizers import Characters
from regard.generate import CachedLanguageModel, Decoder, Prompt, Sampler, Sampling, TextGenerator
from regard.generate.cuda_graph import GraphedStep, reset_state
from regard.generate.sampling import BLOCK
from regard.models import GPT, GPTConfig
from regard.nn.quantized import Int8Config, quantize

TOKENIZER = Characters("abcdefgh .\n")
SIZES: Any = {"vocabulary": VOCABULARY, "layers": 2, "heads": 2, "width": 16, "ngrams": 2, "zero_init": False}
WARM = Sampling(temperature=2.0)
RAN: Counter[str] = Counter()

tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30).map(tuple)
waiting = st.lists(st.builds(Prompt, tokens, st.integers(0, 2)), min_size=4, max_size=9)


def alone(generator: TextGenerator, prompt: Prompt) -> str:
    """The text of a prompt by the definition, up to the first stop string."""
    assert isinstance(generator.model, GPT)
    generated = naive_decode(
        generator.model, list(prompt.tokens), generator.length, generator.sampling, generator.seed, prompt.sample
    )
    text = TOKENIZER.decode(generated)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in generator.stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def ideal_steps(lengths: Sequence[int], batch: int) -> int:
    """The steps after prefill when each text, in order, begins as soon as a row is free."""
    free = [0] * min(batch, len(lengths))
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free) - 1


@contextmanager
def counted() -> Iterator[list[int]]:
    """The rows of every step of a batch."""
    rows, step = [], CachedLanguageModel.step

    def counting(self: CachedLanguageModel, tokens: torch.Tensor) -> torch.Tensor:
        rows.append(len(tokens))
        return step(self, tokens)

    with patch.object(CachedLanguageModel, "step", counting):
        yield rows


@given(
    models(),
    waiting,
    samplings,
    seeds,
    st.sampled_from([30, 12, 5, 1]),
    st.sets(st.sampled_from(TOKENIZER.characters), min_size=1, max_size=5)
    | st.sets(st.sampled_from(["ab", "b", "h.", "\na"])),
    st.sampled_from([2, 3, 1, 4]),
    st.sampled_from([1, 1, 4, 50]),
)
def test_each_text_is_as_alone_and_no_row_idles_while_prompts_wait(
    model: GPT, prompts: list[Prompt], sampling: Sampling, seed: int, length: int, stops: Any, batch: int, every: int
) -> None:
    generator = TextGenerator(model, TOKENIZER, sampling, length, seed, tuple(stops), batch, every)
    with counted() as rows:
        texts = generator.texts(prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.text == alone(generator, prompt)
    assert max(rows, default=0) <= batch
    lengths = [text.tokens for text in texts]
    if every == 1 or not stops:  # else a stop string is found with the next copy to the host
        assert len(rows) == ideal_steps(lengths, batch)
    RAN["cases"] += 1
    RAN["some waited"] += len(prompts) > batch > 1
    RAN["of different lengths"] += len(prompts) > batch > 1 and len(set(lengths)) > 1
    RAN["slid"] += max(len(prompt.tokens) for prompt in prompts[batch:] or prompts) + length > model.config.context


def test_the_law_met_every_kind_of_case() -> None:
    if RAN["cases"] < 20:
        pytest.skip("the law did not run here")
    for kind in ("some waited", "of different lengths", "slid"):
        assert RAN[kind] >= 0.05 * RAN["cases"], RAN


@given(models(), st.lists(tokens, min_size=1, max_size=3), samplings, seeds, st.integers(1, 12), st.data())
def test_rows_may_finish_at_any_time(
    model: GPT, texts: list[tuple[int, ...]], sampling: Sampling, seed: int, length: int, data: st.DataObject
) -> None:
    """Equal prompts, rows that idle at the end for longer than a text is, several that are taken over at once."""
    prompts = data.draw(st.lists(st.sampled_from(texts), min_size=8, max_size=14), label="prompts")
    limits = data.draw(st.lists(st.integers(1, length), min_size=len(prompts), max_size=len(prompts)), label="limits")
    batch = data.draw(st.sampled_from([5, 7, 2, 3]), label="batch")
    cached = CachedLanguageModel(model, prompts, length, batch=batch)
    decoder = Decoder(cached, Sampler(sampling, range(len(prompts)), seed=seed, seen=prompts), length)
    got: list[list[int]] = [[] for _ in prompts]
    while not decoder.done:
        for number, token in zip(decoder.prompts, decoder.next().tolist(), strict=True):
            got[number] += [token] if len(got[number]) < limits[number] else []
        decoder.retain([len(got[number]) < limits[number] for number in decoder.prompts])
    assert decoder.position == ideal_steps(limits, batch) + 1
    for stream, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        assert got[stream] == naive_decode(model, list(prompt), limit, sampling, seed, stream)


def many(count: int, context: int = 16) -> list[Prompt]:
    """Prompts of 1 to ``context`` tokens, some twice."""
    generator = torch.Generator().manual_seed(3)
    lengths = [1, *torch.randint(1, context + 1, (count,), generator=generator).tolist()]
    texts = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return [Prompt(tuple(text), i % 2) for i, text in enumerate([*texts, *texts[:2]])]


def texts_of(generator: TextGenerator, prompts: Sequence[Prompt]) -> list[str]:
    return [text.text for text in generator.texts(prompts)]


def check(generator: TextGenerator, prompts: list[Prompt]) -> None:
    """Three rows for all prompts: the texts of a batch of one prompt each."""
    with counted() as rows:
        together = texts_of(replace(generator, batch=3), prompts)
    lengths = [text.tokens for text in generator.texts(prompts)]
    assert len(rows) == ideal_steps(lengths, 3)
    assert len(set(lengths)) > 1
    assert together == [texts_of(generator, [prompt])[0] for prompt in prompts]


def test_a_quantized_model() -> None:
    torch.manual_seed(1)
    model = GPTConfig(**{**SIZES, "width": 64}, context=16).build().eval()
    quantize(model, Int8Config())
    check(TextGenerator(model, TOKENIZER, WARM, 40, stops=("b", "cd")), many(8))


class EagerStep(GraphedStep):
    """A step at fixed addresses, as a CUDA graph has it, that a CPU can run."""

    def capture(self) -> None:
        self.logits = self._step()
        reset_state(self._state)

    def __call__(self) -> torch.Tensor:
        return self.logits.copy_(self._step())


@pytest.mark.parametrize("attention", [{}, {"attention": WindowConfig(4), "global_every": 2}], ids=str)
def test_a_step_at_fixed_addresses(attention: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph reads and writes the same tensors for all prompts of a file."""
    generator = TextGenerator(
        wild(GPTConfig(**SIZES, **attention, context=16), 0), TOKENIZER, WARM, 40, stops=("b", "cd"), batch=3
    )
    want = texts_of(generator, many(12))
    monkeypatch.setattr("regard.generate.cached.graph_refusal", lambda *_: None)
    monkeypatch.setattr("regard.generate.cached.GraphedStep", EagerStep)
    assert texts_of(generator, many(12)) == want


def test_the_state_stays_the_same_while_prompts_wait() -> None:
    """Memory is that of the batch: the tensors of the first prompts, at their addresses."""
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 1]] * 5
    cached = CachedLanguageModel(wild(GPTConfig(**SIZES, context=64), 0), prompts, 6, batch=2)
    decoder = Decoder(cached, Sampler(WARM, range(20)), 6)

    def addresses() -> list[tuple[int, torch.Size]]:
        tensors = [leaf for leaf in tree_leaves((cached._state, cached._text)) if isinstance(leaf, torch.Tensor)]
        assert {len(tensor) for tensor in tensors} == {2}
        return [(tensor.data_ptr(), tensor.shape) for tensor in tensors]

    before, ran = addresses(), []
    while not decoder.done:
        ran += [list(decoder.prompts)]
        for _ in range(6):
            decoder.next()
        assert addresses() == before
        decoder.retain([False, False])
    assert ran == [[i, i + 1] for i in range(0, 20, 2)]


def test_a_prompt_with_more_samples_than_rows_is_processed_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the first batch and for the samples that wait, however many."""
    model = wild(GPTConfig(**SIZES, context=16), 0)
    shapes, step = [], model.step

    def counting(tokens: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        shapes.append(tuple(tokens.shape))
        return step(tokens, *arguments, **options)

    monkeypatch.setattr(model, "step", counting)
    prompts = [Prompt((1, 2, 3, 4, 5), sample) for sample in range(12)]
    TextGenerator(model, TOKENIZER, WARM, 5, stops=("b",), batch=3).texts(prompts)
    assert [shape for shape in shapes if shape[1] > 1] == [(1, 5), (1, 4)]


def test_equal_prompts_may_be_admitted_with_others() -> None:
    """What was processed for the latest prompt is used for that prompt only."""
    a, b = (1, 2, 3, 4), (5, 6)
    generator = TextGenerator(wild(GPTConfig(**SIZES, context=16), 0), TOKENIZER, WARM, 6, batch=3)
    prompts = [Prompt(a if name == "a" else b) for name in "aaabbabbabbbaab"]
    assert texts_of(generator, prompts) == [alone(generator, prompt) for prompt in prompts]


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 100])
def test_random_numbers_begin_anew_with_each_prompt(length: int) -> None:
    """Whatever part of a block of numbers is left when a row is taken over."""
    model = wild(GPTConfig(**SIZES, context=8), 0)
    generator = TextGenerator(model, TOKENIZER, WARM, length, stops=("a.",), batch=2)
    prompts = [Prompt((1, 2)), Prompt((3,)), Prompt((4, 5, 6)), Prompt((1, 2), 1), Prompt((7,)), Prompt((1, 2))]
    texts = texts_of(generator, prompts)
    assert texts == [alone(generator, prompt) for prompt in prompts]


def test_the_penalty_for_repetition_counts_the_tokens_of_the_row_s_own_text() -> None:
    generator = TextGenerator(
        wild(GPTConfig(**SIZES, context=16), 0), TOKENIZER, Sampling(1.0, repetition=3.0), 12, stops=("b",), batch=2
    )
    assert texts_of(generator, many(6)) == [alone(generator, prompt) for prompt in many(6)]
