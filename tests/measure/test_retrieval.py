"""Looking up: the nearest by the formula, written out densely."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.measure import RetrievalBaseline
from regard.measure.retrieval import words

texts = st.lists(st.sampled_from(["on", "Off", "light", "the", "a", ",", "été", "!"]), max_size=5).map(" ".join)


def cosine(question: str, source: str, sources: list[str]) -> float:
    def weights(text: str) -> dict[str, float]:
        have = {w: sum(w in words(other) for other in sources) for w in words(text)}
        return {w: n * (math.log((1 + len(sources)) / (1 + have[w])) + 1) for w, n in Counter(words(text)).items()}

    a, b = weights(question), weights(source)
    size = math.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))
    return sum(a[w] * b.get(w, 0) for w in a) / size if size else 0.0


@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_the_nearest_is_that_of_the_formula(sources, question):
    number, likeness = RetrievalBaseline(sources, [f"t{i}" for i in range(len(sources))]).nearest(question)
    wanted = [cosine(question, source, sources) for source in sources]
    assert likeness == pytest.approx(max(wanted), abs=1e-9)
    if number < 0:
        assert max(wanted) == 0
    else:
        assert wanted[number] == pytest.approx(max(wanted))


@given(st.lists(texts.filter(bool), min_size=1, max_size=8))
def test_a_training_sentence_finds_itself_or_its_double(sources):
    index = RetrievalBaseline(sources, sources)
    for source in sources:
        number, likeness = index.nearest(source)
        assert likeness == pytest.approx(1)
        assert Counter(words(sources[number])) == Counter(words(source))


def test_translations_come_from_training():
    index = RetrievalBaseline(
        ["the light is on", "the door is open"], ["la lumière est allumée", "la porte est ouverte"]
    )
    assert index.translate("is the DOOR closed?") == "la porte est ouverte"
    assert index.translate("xyz") == ""
    assert index.translate("") == ""
    assert RetrievalBaseline([], []).translate("light") == ""
    with pytest.raises(UserError, match="2 sources and 1 targets"):
        RetrievalBaseline(["a", "b"], ["c"])
