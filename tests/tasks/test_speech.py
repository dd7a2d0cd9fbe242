"""CTC: the loss against all alignments, decoding, edit distances, and measures that add up."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from regard.data import ArrayBatch, TextConfig
from regard.data.base import IGNORE_INDEX
from regard.data.signals.arrays import Signals
from regard.data.signals.speech import SpeechData
from regard.errors import UserError
from regard.models import SignalConfig, SignalEncoder
from regard.nn.signals import PatchesConfig
from regard.tasks import SpeechTaskConfig
from regard.tasks.speech import SpeechTask, edits

ALPHABET = (" ", "a", "b")


def data() -> SpeechData:
    random = np.random.default_rng(0)
    lengths, texts = (8, 6, 7), ([1, 2], [2, 0, 1], [1, 1])
    values = tuple(random.normal(size=(n, 1)).astype(np.float32) for n in lengths)
    part = Signals(values, tuple(np.array(text) for text in texts))
    return SpeechData((part, part, part), ALPHABET, name="test")


def trained() -> tuple[SpeechTask, SignalEncoder]:
    torch.manual_seed(0)
    task = SpeechTaskConfig().fit(data())
    config = SignalConfig(points=8, width=8, heads=2, layers=1, embed=PatchesConfig(1))
    return task.build(), task.model_for(config, data()).build().eval()  # type: ignore[return-value]


def collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    kept = [number for place, number in enumerate(path) if place == 0 or number != path[place - 1]]
    return [number for number in kept if number != blank]


def test_the_loss_is_that_of_all_alignments() -> None:
    task, model = trained()
    batch = next(data().test_batches(3))
    term = task.terms(model, batch)["character"]
    expected = 0.0
    with torch.no_grad():
        for row in range(3):
            length, text = int(batch.lengths[row]), [n for n in batch.targets[row].tolist() if n >= 0]  # type: ignore[index]
            shares = model(batch.inputs[row : row + 1, :length]).softmax(-1)[0]
            paths = [p for p in product(range(4), repeat=length) if collapsed(p, 3) == text]
            chosen = torch.tensor(paths)  # [paths, length]
            expected -= float(shares[torch.arange(length), chosen].log().sum(1).logsumexp(0))
    assert term.total.item() == pytest.approx(expected, rel=1e-4)
    assert int(term.count) == 7 == int(task.counts(batch)["character"])


def test_rows_do_not_depend_on_their_batch() -> None:
    task, model = trained()
    whole = next(data().test_batches(3))
    parts = list(data().test_batches(1))
    total = sum(task.terms(model, batch)["character"].total.item() for batch in parts)
    assert task.terms(model, whole)["character"].total.item() == pytest.approx(total, rel=1e-5)
    sums = sum(task.measured(model, batch)[1] for batch in parts)
    torch.testing.assert_close(task.measured(model, whole)[1], sums)
    texts = [task.predictions(model, batch)[0].record["text"] for batch in parts]
    assert [one.line for one in task.predictions(model, whole)] == texts


def test_decoding_joins_neighbors_and_drops_blanks() -> None:
    task, _ = trained()
    path = torch.tensor([[3, 1, 1, 3, 1, 0, 0, 2, 3, 0, 2, 2]])
    logits = torch.nn.functional.one_hot(path, 4).float()
    assert task.decoded(logits, torch.tensor([9])) == ["aa b"]
    assert task.decoded(logits, torch.tensor([12])) == ["aa b b"]


def test_metrics() -> None:
    found = trained()[0].metrics(torch.tensor([2.0, 8.0, 3.0, 4.0]))
    assert found == {"recognized": 0.75, "character_errors": 0.25, "word_errors": 0.75}


def test_a_sound_that_is_too_short_adds_nothing() -> None:
    task, model = trained()
    batch = ArrayBatch(torch.zeros(1, 2, 1), torch.tensor([[1, 1, 1, 1]]), torch.tensor([2]))
    assert task.terms(model, batch)["character"].total.item() == 0
    none = batch._replace(targets=torch.full((1, 1), IGNORE_INDEX))
    assert int(task.counts(none)["character"]) == 0
    assert task.measured(model, none)[1].tolist() == [0, 0, 0, 0]


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_edit_distance(one: str, other: str) -> None:
    def slow(left: str, right: str) -> int:
        if not left or not right:
            return len(left) + len(right)
        if left[0] == right[0]:
            return slow(left[1:], right[1:])
        return 1 + min(slow(left[1:], right), slow(left, right[1:]), slow(left[1:], right[1:]))

    assert edits(one, other) == edits(other, one) == slow(one, other)


def test_other_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abc " * 200)
    text = TextConfig(path=str(tmp_path / "text.txt")).build(8, tmp_path)
    with pytest.raises(UserError, match="--data speech"):
        SpeechTaskConfig().fit(text)
