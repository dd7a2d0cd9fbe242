"""BLEU, chrF and the bootstrap against sacrebleu itself, and against what must hold."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.measure import bleu_by_length, compare, score
from regard.measure.bleu import bleu, statistics
from warm_process import python

WORDS = ["la", "lumière", "du", "salon", "est", "allumée", "et", "porte", "reste", "ouverte", "depuis", "matin"]
lines = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
pairs = st.lists(st.tuples(lines, lines), min_size=1, max_size=12)


def noisy(references: list[str], share: float, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(w if draw.random() > share else "x" for w in line.split()) for line in references]


def many(count: int) -> list[str]:
    draw = np.random.default_rng(7)
    return [" ".join(draw.choice(WORDS, size=draw.integers(4, 12))) for _ in range(count)]


@given(pairs)
def test_figures_are_sacrebleus(given):
    outputs, references = map(list, zip(*given, strict=True))
    found = {one.name: one for one in score(outputs, references)}
    assert found["BLEU"].value == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score)
    assert found["chrF"].value == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert f"version:{sacrebleu.__version__}" in found["BLEU"].signature
    assert "tok:13a" in found["BLEU"].signature
    assert "nc:6" in found["chrF"].signature
    assert bleu(statistics(outputs, references).sum(0)) == pytest.approx(found["BLEU"].value)


def test_a_perfect_translation_has_all_points():
    references = many(20)
    assert [one.value for one in score(references, references)] == pytest.approx([100, 100])


def test_lengths_are_told_apart():
    sources = ["a b", "a b c", "a " * 8, "a " * 40, ""]
    references = ["la porte est ouverte"] * 5
    outputs = [*references[:2], "x y z w", *references[3:]]
    found = bleu_by_length(sources, outputs, references)
    assert [(one.words, one.size) for one in found] == [("1-5", 3), ("6-10", 1), ("31+", 1)]
    assert [one.bleu for one in found] == pytest.approx([100, 0, 100], abs=1e-9)


def test_a_great_difference_is_no_chance_and_none_is():
    references = many(150)
    good, bad = noisy(references, 0.1, 1), noisy(references, 0.4, 2)
    found = compare(bad, good, references, samples=300)
    assert found.difference == pytest.approx(score(good, references)[0].value - score(bad, references)[0].value)
    assert found.p < 0.01
    assert 0 < found.low < found.difference < found.high
    assert compare(good, bad, references, samples=300).difference == pytest.approx(-found.difference)
    alike = compare(noisy(references, 0.2, 3), noisy(references, 0.2, 4), references, samples=300)
    assert alike.p > 0.05
    assert alike.low < 0 < alike.high
    assert compare(bad, good, references, samples=300) == found
    assert compare(bad, good, references, samples=300, seed=2) != found


@settings(max_examples=5)
@given(st.integers(0, 99))
def test_under_no_difference_small_p_values_are_rare(seed):
    references = many(60)
    found = [
        compare(
            noisy(references, 0.3, seed + 1000 * i),
            noisy(references, 0.3, seed + 1000 * i + 500),
            references,
            samples=60,
        ).p
        for i in range(10)
    ]
    assert sum(p < 0.05 for p in found) <= 3


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UserError, match="2 translations and 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(UserError, match="no translation to measure"):
        score([], [])
    with pytest.raises(UserError, match="number of samples must be at least 1"):
        compare(["a"], ["a"], ["a"], samples=0)


def test_without_sacrebleu_the_error_names_the_way_to_get_it(tmp_path):
    code = "import sys; sys.modules['sacrebleu'] = None; from regard.measure import score; score(['a'], ['a'])"
    done = python(code, tmp_path)
    assert "UserError: BLEU and chrF need the sacrebleu package" in done.stderr
    assert "pip install 'regard[translate]'" in done.stderr
