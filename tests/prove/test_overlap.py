"""Held-out text in the training text is found if it is rare or not verbatim; what language repeats is no alarm."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data import TextConfig
from regard.prove import ModelUnderTest, certify
from regard.prove.shared_text import known_lengths, near_duplicates

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words(seed: int, count: int) -> list[str]:
    """Text of frequent and rare words, with phrases that recur, as language has them."""
    draw = random.Random(1)
    lexicon = ["".join(draw.choices(LETTERS, k=draw.randint(2, 8))) for _ in range(600)]
    phrases = [draw.choices(lexicon, k=draw.randint(3, 6)) for _ in range(60)]
    draw, text = random.Random(seed), list[str]()
    while len(text) < count:
        rare = draw.choices(lexicon, weights=[1 / (i + 1) for i in range(600)], k=4)
        text += draw.choice(phrases) if draw.random() < 0.1 else rare
    return text


def certificate(tmp_path: Path, training: str, validation: str, context: int = 32) -> Any:
    (tmp_path / "train.txt").write_text(training)
    (tmp_path / "validation.txt").write_text(validation)
    config = TextConfig(path=str(tmp_path / "train.txt"), validation_path=str(tmp_path / "validation.txt"))
    data = config.build(context, tmp_path)
    return certify(ModelUnderTest(lambda tokens: tokens, vocabulary=data.vocabulary, data=data), claims=["overlap"]).of(
        "overlap"
    )


TRAIN, HELD_OUT = words(2, 30_000), words(3, 4000)


@pytest.mark.parametrize("context", [4, 8, 32, 256])
def test_ordinary_text_is_no_alarm(tmp_path, context):
    found = certificate(tmp_path, " ".join(TRAIN), " ".join(HELD_OUT), context)
    assert found.verdict == "holds", found.evidence


@pytest.mark.parametrize("context", [8, 256])
def test_one_passage_of_the_validation_text_in_the_training_text(tmp_path, context):
    training = [*TRAIN[:20_000], *HELD_OUT[1000:1060], *TRAIN[20_000:]]
    found = certificate(tmp_path, " ".join(training), " ".join(HELD_OUT), context)
    assert found.verdict == "fails", found.evidence
    assert "consecutive tokens" in found.evidence


def changed(text: list[str], how: str) -> str:
    draw = random.Random(4)
    if how == "words exchanged":
        return " ".join(draw.choice(text) if draw.random() < 0.1 else word for word in text)
    if how == "typing errors":
        return "".join(draw.choice(LETTERS) if draw.random() < 0.03 else one for one in " ".join(text))
    if how == "capitals":
        return " ".join(word.capitalize() for word in text)
    return ",\n".join(text)  # other white space and punctuation


@pytest.mark.parametrize("how", ["words exchanged", "typing errors", "capitals", "punctuation"])
def test_a_copy_that_is_not_verbatim(tmp_path, how):
    training = f"{' '.join(TRAIN)} {changed(HELD_OUT[1000:2000], how)}"
    found = certificate(tmp_path, training + " ,\n" + LETTERS.upper(), " ".join(HELD_OUT))
    assert found.verdict == "fails", found.evidence


def test_repetitive_text_is_compared_with_itself(tmp_path):
    """Tables and boilerplate: every tenth line is the same, in both parts."""
    line = "this file is part of the collection and may be copied by anyone who likes it; see the license for more"

    def boilerplate(text: list[str]) -> str:
        return "\n".join(f"{line}\n{' '.join(text[i : i + 90])}" for i in range(0, len(text), 90))

    found = certificate(tmp_path, boilerplate(TRAIN), boilerplate(HELD_OUT))
    assert found.verdict == "holds", found.evidence


def test_the_lengths_of_passages():
    other = np.arange(100)
    text = np.concatenate((np.array([7, 5]), other[20:31], np.array([3, 1]), other[50:54]))
    (lengths,) = known_lengths([text], [other], 4)
    assert lengths[2:10].tolist() == [11] * 8
    assert lengths[-1] == 4
    assert lengths[[0, 1, 11, 12]].tolist() == [0, 0, 0, 0]


def test_windows_without_common_shingles_are_not_near():
    generator = np.random.default_rng(1)
    one, other = generator.integers(0, 20, (2, 5000))
    assert near_duplicates([one], [other])[0].known == 0
    share, _ = near_duplicates([one[1000:2000]], [one])
    assert share.part > 0.9
