"""Each fault of data, tokenizers and losses has the effect that it names, and its sound twin does not."""

from __future__ import annotations

import pytest
import torch
from fault_effects import (
    CLEAR,
    ROUNDING,
    follows,
    loss,
    shared,
    trained_on,
)
from faults import made
from faulty_data import ALPHABET, Sentences, text_data
from faulty_torch import LENGTH
from torch.nn import functional as F

from regard.data import Bytes, Characters, TextBatch, TextData
from regard.errors import UserError
from regard.tasks import LanguageTask


def test_tokenizer_loses_characters():
    tokenizer, known, unknown = made("tokenizer loses characters").tokenizer, "a bad", "a bad Ω"
    assert tokenizer.decode(tokenizer.encode(known)) == known
    assert tokenizer.decode(tokenizer.encode(unknown)) == "a bad "
    with pytest.raises(UserError):
        Characters(ALPHABET).encode(unknown)


def test_labels_unshifted():
    batch = made("labels unshifted").data.batch(0, seed=1, size=4)
    assert torch.equal(batch.inputs, batch.targets)
    assert not follows(batch)
    for data in (text_data(TextData, LENGTH), Sentences(LENGTH)):
        assert follows(data.batch(0, seed=1, size=4))
        assert all(follows(one) for one in data.validation_batches(5))


@torch.no_grad()
def test_mean_of_means():
    subject = made("mean of means")
    model, data = subject.model, subject.data
    big, halves = [data.batch(0, seed=1, size=8)], [data.batch(i, seed=1, size=4) for i in range(2)]
    assert torch.equal(big[0].inputs, torch.cat([half.inputs for half in halves]))
    task = subject.task
    assert abs(loss(model, task, big) - loss(model, task, halves)) > CLEAR
    assert loss(model, LanguageTask(), big) == pytest.approx(loss(model, LanguageTask(), halves), abs=ROUNDING)
    assert loss(model, task, big) == pytest.approx(loss(model, LanguageTask(), big), abs=ROUNDING)


def test_windows_shuffled_then_split():
    data = made("windows shuffled, then split").data
    assert shared(data, LENGTH) < 0.5  # whole windows are not the way to see it
    assert shared(data, 12) > 0.9
    assert shared(text_data(TextData, LENGTH), 12) < 0.01


def test_spaces_cleaned_up():
    tokenizer, sound, text = made("spaces cleaned up").tokenizer, Bytes(), "Who 's there ? Nay , answer me ."
    assert tokenizer.decode(tokenizer.encode(text)) == "Who's there? Nay, answer me."
    assert sound.decode(sound.encode(text)) == text
    usual = "Who's there?\n\tNay, answer me:  stand — and unfold yourself."
    assert tokenizer.decode(tokenizer.encode(usual)) == usual


@torch.no_grad()
def test_shifted_twice():
    subject = made("shifted twice")
    model, task, batch = subject.model, subject.task, subject.data.batch(0, seed=1, size=8)
    assert follows(batch)  # the data are sound
    logits = model(batch.inputs)
    found, right = loss(model, task, [batch]), float(F.cross_entropy(logits.transpose(1, 2), batch.targets))
    late = float(F.cross_entropy(logits[:, :-1].transpose(1, 2), batch.targets[:, 1:]))
    assert found == pytest.approx(late, abs=ROUNDING)
    assert abs(found - right) > CLEAR
    assert loss(model, LanguageTask(), [batch]) == pytest.approx(right, abs=ROUNDING)
    halves = [TextBatch(*pair) for pair in zip(batch.inputs.split(4), batch.targets.split(4), strict=True)]
    assert loss(model, task, halves) == pytest.approx(found, abs=ROUNDING)


def test_second_round_over_all_rows():
    data = made("second round over all rows").data
    assert trained_on(data, range(64)) == 0  # the first epoch is sound
    assert trained_on(data, range(64, 96)) == 32
    assert trained_on(Sentences(LENGTH), range(200)) == 0
