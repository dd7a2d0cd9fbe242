"""The study of the bottleneck: texts of joined sentences, and words that follow from the numbers."""

from typing import Any

import pytest

from regard.data import PairsConfig
from regard.measure import Comparison
from regard.studies import bottleneck
from regard.studies.bottleneck import LIMITS, Found, ended, joined

SENTENCES = [("one two", "un deux"), ("three.", "trois."), ("four five six", "quatre cinq six"), ("seven", "sept")]


def test_joined_texts_keep_every_sentence_once_and_in_order():
    for limit in range(1, 9):
        texts = joined(SENTENCES, (limit for _ in SENTENCES))
        for side in range(2):
            assert (
                " ".join(text[side] for text in texts).split()
                == " ".join(ended(pair[side]) for pair in SENTENCES).split()
            )
        for source, _ in texts:
            assert len(source.split()) <= limit or source in map(ended, (pair[0] for pair in SENTENCES))
    assert joined(SENTENCES, iter([3, 9])) == [
        ("one two. three.", "un deux. trois."),
        ("four five six. seven.", "quatre cinq six. sept."),
    ]


def test_scores_are_by_length_with_the_gain_over_one_vector():
    references = {10: ["a b c d e f", "g h i j k l"], 20: ["a b c d e f g h i j k l"]}
    wrong = {limit: ["x y z"] * len(texts) for limit, texts in references.items()}
    found = bottleneck.measured({"one vector": wrong, "Bahdanau": references}, references, 1)
    assert [one.bleu for one in found["Bahdanau"]] == pytest.approx([100, 100])
    assert max(one.bleu for one in found["one vector"]) < 10
    assert found["one vector"][0].gain is None
    gain = found["Bahdanau"][1].gain
    assert gain is not None
    assert gain.difference == pytest.approx(100 - found["one vector"][1].bleu)


def rows(first: float, last: float, gains: tuple[Any, Any]) -> list[Found]:
    return [Found(first, 50.0, gains[0]), *[Found(last, 40.0, gains[1])] * (len(LIMITS) - 1)]


def test_words_say_whether_one_vector_loses_more():
    sure, unsure = Comparison(2, 18, 12, 20, 0.001), Comparison(10, 11, -2, 4, 0.6)
    found = {
        "one vector": rows(20, 2, (None, None)),
        "Bahdanau": rows(20, 18, (unsure, sure)),
        "Transformer": rows(20, 3, (sure, unsure)),
    }
    effort = {name: {"steps": 1000, "seconds": 119.6} for name in found}
    said = bottleneck.words(found, effort, 650)
    assert "one vector 20.0 and 2.0 BLEU (chrF 50.0 and 40.0)" in said[0]
    assert "Bahdanau keeps 90% of its BLEU and one vector 10%" in said[1]
    assert "+16.0 at 80 (+12.0 to +20.0): the longer the text, the more one vector loses" in said[1]
    assert "this does not show that one vector loses more with length" in said[2]
    assert "one vector 1,000 in 120 s" in said[3]
    found["Transformer"] = rows(0.2, 0.1, (sure, unsure))
    assert "A BLEU of 0.2 is noise" in bottleneck.words(found, effort, 650)[1]


@pytest.mark.slow
def test_the_study_runs(tmp_path, monkeypatch):
    lines = (f"number {n} is it\tnombre {n} est ceci\tgroup {n}\n" for n in range(60))
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bottleneck, "SENTENCES", PairsConfig(path="pairs.tsv", validation=0.2, test=0.2, near=100))
    monkeypatch.setattr(bottleneck, "PASSES", 1)
    monkeypatch.setattr(bottleneck, "TIMED", 1)
    found = bottleneck.study(1e-3, 1, lambda line: None)
    assert set(found.numbers["effort"]) == set(bottleneck.MODELS)
    assert all(one["steps"] >= 2 and one["seconds"] > 0 for one in found.numbers["effort"].values())
    assert found.numbers["texts"] == sorted(found.numbers["texts"], reverse=True)
    assert all(len(row) == len(LIMITS) for row in found.numbers["found"].values())
