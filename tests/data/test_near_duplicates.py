"""Nearly the same sentences: the fast way finds exactly those that comparing everything finds, by sacrebleu's chrF."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from regard.data.translation import near_duplicates as near_module
from regard.data.translation.near_duplicates import chrf, near, near_once

CHRF_2 = CHRF()
# Few letters, so that runs repeat; texts shorter than a run of the index; letters beyond 16 bits; empty ones.
words = st.sampled_from(["a", "ab", "the", "door", "doors", "open", "is", "ist", "über", "\U0001f600", "12", "\u00a0"])
texts = st.lists(words, max_size=9).map(" ".join)


@given(one=texts, other=texts)
def test_chrf_is_sacrebleus(one, other):
    assert chrf(one, other) == pytest.approx(CHRF_2.sentence_score(one, [other]).score, abs=1e-9)


@given(
    asked=st.lists(texts, max_size=6), known=st.lists(texts, max_size=12), above=st.sampled_from([0, 30, 60, 80, 95])
)
def test_near_is_the_same_as_comparing_everything(asked, known, above):
    found = near(asked, known, above)
    # Rounding may differ in the last place: a score that is the limit itself is not asked about.
    scores = [[CHRF_2.sentence_score(text, [other]).score for other in known] for text in asked]
    for row, flag in zip(scores, found.tolist(), strict=True):
        if not any(abs(score - above) < 1e-9 for score in row):
            assert flag == any(score > above for score in row)


def runs_of_4(text: str) -> Counter[str]:
    bare = "".join(text.split())
    return Counter(bare[place : place + 4] for place in range(len(bare) - 3))


@given(asked=st.lists(texts, min_size=1, max_size=4), known=st.lists(texts, min_size=1, max_size=6))
def test_the_index_counts_what_texts_share(asked, known):
    index = near_module._Index(["".join(text.split()) for text in (*asked, *known)], len(asked))
    for number, text in enumerate(asked):
        expected = [(runs_of_4(text) & runs_of_4(other)).total() for other in known]
        assert index.shared(number).tolist() == expected


@given(one=texts, other=texts)
def test_the_bound_holds_and_what_is_needed_suffices(one, other):
    lengths = [len("".join(text.split())) for text in (one, other)]
    shared = (runs_of_4(one) & runs_of_4(other)).total()
    (bound,) = near_module._bound(lengths[0], np.array(lengths[1:]), np.array([shared]))
    assert bound >= chrf(one, other) - 1e-9
    for above in (0.0, 50.0, 80.0):
        enough = near_module._needed(lengths[0], lengths[1], above)[lengths[1]]
        if bound > above:
            assert shared >= enough
        if bound < above - 0.1:
            assert shared < enough


def test_more_characters_than_fit_into_one_number():
    everything = "".join(map(chr, range(0x4E00, 0x4E00 + 60_000)))
    many = "".join(letter for letter in everything if not letter.isspace() and not 0xD800 <= ord(letter) < 0xE000)
    assert len(set(many)) > 2**63 ** (1 / 4)
    asked = [many[5:25], many[1000:1018] + "ab"]
    index = near_module._Index([*asked, many, many[10:20], many[1000:1030]], 2)
    assert index.shared(0).tolist() == [17, 7, 0]
    assert index.shared(1).tolist() == [15, 0, 15]


def sentences(count: int, seed: int) -> list[str]:
    """Many that differ from others in a word or two."""
    draw = np.random.default_rng(seed)
    subjects, verbs = ["the door", "a window", "this lamp", "the garage door"], ["is open", "was closed", "turns on"]
    places = ["in the kitchen", "on the first floor", "of the house", "near the garden gate", "when nobody is home"]
    chosen = [(subjects[a % 4], verbs[b % 3], places[c % 5], str(d)) for a, b, c, d in draw.integers(0, 60, (count, 4))]
    return [" ".join(words) for words in chosen]


def test_a_larger_set(tmp_path):
    asked, known = sentences(60, 0), sentences(150, 1)
    found = near(asked, known, 90)
    expected = [max(CHRF_2.sentence_score(text, [other]).score for other in known) > 90 for text in asked]
    assert found.tolist() == expected
    assert 5 < found.sum() < 55


def test_the_index_spares_most_comparisons(monkeypatch):
    asked, known = sentences(60, 0), sentences(150, 1)
    compared = []
    monkeypatch.setattr(near_module, "_score", lambda *_: compared.append(1) or 0.0)
    near(asked, known, 80)
    assert len(compared) < 60 * 150 / 4


def test_kept_in_the_cache(tmp_path, monkeypatch):
    asked, known = sentences(20, 0), sentences(50, 1)
    first = near_once(asked, known, 80, tmp_path)
    (kept,) = (tmp_path / "near").iterdir()
    assert json.loads(kept.read_text()) == np.flatnonzero(first).tolist()
    assert near_once(asked, known, 81, tmp_path) is not None
    assert len(list((tmp_path / "near").iterdir())) == 2  # another limit is another question

    kept.write_text("[" + str(int(np.flatnonzero(~first)[0])) + "]")
    assert near_once(asked, known, 80, tmp_path).sum() == 1  # really read from there
    for damage in ("", "[1,", '["x"]', "[1000]", "7.5x"):
        kept.write_text(damage)
        assert near_once(asked, known, 80, tmp_path).tolist() == first.tolist()
        assert json.loads(kept.read_text()) == np.flatnonzero(first).tolist()


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path):
    Path(tmp_path / "file").write_text("")
    asked, known = sentences(5, 0), sentences(9, 1)
    assert near_once(asked, known, 80, tmp_path / "file").tolist() == near(asked, known, 80).tolist()
