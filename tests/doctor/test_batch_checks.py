"""Checks of the doctor on constructed batches and pairs; repeated text by brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from check_kit import a_run, kinds

from regard.attention import Packed, Padded
from regard.data import PairBatch, TextBatch
from regard.data.texts.rolling_hash import hashes_of
from regard.data.translation.sentence_pairs import SentencePairs
from regard.doctor import Finding
from regard.doctor.checks.data_fault import DataFault
from regard.doctor.checks.targets import TargetFault, TokenRange
from regard.doctor.context import RecentBatches
from regard.doctor.model_pass import first_rows
from regard.doctor.text_scan import occurrences


def judge(batches: RecentBatches, vocabulary: int, epoch: float) -> list[Finding]:
    run = a_run(vocabulary, epoch)
    return [finding for check in (TokenRange, TargetFault, DataFault) for finding in check(run).on_batches(batches)]


def batch(rows: int = 4, length: int = 12, seed: int = 1) -> TextBatch:
    text = torch.randint(20, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return TextBatch(text[:, :-1], text[:, 1:])


def test_batches_that_are_well() -> None:
    fetched = RecentBatches({number: batch(seed=number) for number in (5, 4, 3)})
    assert list(judge(fetched, 20, math.inf)) == []


def test_rows_that_come_again() -> None:
    fetched = RecentBatches({number: batch(seed=number % 2) for number in (5, 4, 3)})
    assert kinds(judge(fetched, 20, math.inf)) == [("data_fault", "training batches, every 2")]
    assert list(judge(fetched, 20, 3.0)) == []  # all text has come once


def test_rows_that_come_again_within_a_batch() -> None:
    one = batch()
    same = TextBatch(one.inputs[:1].expand(4, -1), one.targets[:1].expand(4, -1))
    assert kinds(judge(RecentBatches({7: same}), 20, math.inf)) == [("data_fault", "training batches, within each")]


def pairs(source: list[list[int]], targets: list[list[int]], width: int) -> PairBatch:
    """Rows of any lengths, padded to `width` with 9; 1 begins and 2 ends a translation."""
    rows = [torch.full((len(source), width), fill) for fill in (9, 9, -1)]
    for i, (one, other) in enumerate(zip(source, targets, strict=True)):
        for row, tokens in zip(rows, (one, [1, *other], [*other, 2]), strict=True):
            row[i, : len(tokens)] = torch.tensor(tokens)
    return PairBatch(rows[0], torch.tensor([len(one) for one in source]), rows[1], rows[2])


def test_pairs_that_come_again_with_other_padding() -> None:
    source, targets = [[3, 4, 5, 2], [6, 7, 2]], [[5, 6], [7, 4, 8]]
    fetched = RecentBatches({1: pairs(source, targets, 6), 0: pairs(source, targets, 9)})
    assert kinds(judge(fetched, 20, math.inf)) == [("data_fault", "training batches, every 1")]


def test_a_translation_that_stands_in_its_source() -> None:
    copied = pairs([[3, 4, 5, 2], [6, 7, 2]], [[4, 5], [6, 7]], 6)
    assert kinds(judge(RecentBatches({0: copied}), 20, math.inf)) == [("target_fault", "source")]


def pair_findings(train: SentencePairs, validation: SentencePairs) -> Any:
    return DataFault(a_run()).pairs(train, validation)


def test_pairs_that_are_held_out_and_trained_on() -> None:
    train = SentencePairs.of((f"a{i}", f"b{i}", "") for i in range(20))
    other = SentencePairs.of((f"c{i}", f"b{i}", "") for i in range(20))
    assert kinds(pair_findings(train, other)) == []
    assert kinds(pair_findings(train, train)) == [("data_fault", "validation")]
    assert kinds(pair_findings(SentencePairs.of(list(zip(*train, strict=True)) * 2), other)) == [
        ("data_fault", "training text")
    ]


@pytest.mark.parametrize("back", [0, 1, 3])
def test_targets_that_were_seen_before(back: int) -> None:
    sound = batch(length=30)
    targets = torch.cat((torch.full((4, back), -1), sound.inputs[:, : 30 - back]), dim=1)
    leaking = RecentBatches({0: sound._replace(targets=targets)})
    assert kinds(judge(leaking, 20, math.inf)) == [("target_fault", "targets")]


def test_tokens_outside_the_vocabulary() -> None:
    inputs = batch().inputs.clone()
    inputs[2, 7] = -3
    (finding,) = TokenRange(a_run(20)).judge(9, batch()._replace(inputs=inputs))
    assert finding.where == "batch 9, inputs[2, 7]"
    assert list(TokenRange(a_run(20)).judge(9, batch())) == []
    assert len(list(TokenRange(a_run(5)).judge(9, batch()))) == 2  # inputs and targets


def test_the_rolling_hash_is_that_of_the_run() -> None:
    tokens = np.random.default_rng(1).integers(0, 3, 400)
    hashes = hashes_of(tokens, 5)
    runs = [tuple(tokens[i : i + 5]) for i in range(396)]
    same = {(a == b) == (x == y) for a, x in zip(hashes, runs, strict=True) for b, y in zip(hashes, runs, strict=True)}
    assert same == {True}
    wanted = np.unique(hashes[::7])
    counted = [int((hashes == one).sum()) for one in wanted]
    found, places = occurrences(wanted, hashes)
    assert np.bincount(found, minlength=len(wanted)).tolist() == counted
    assert (hashes[places] == wanted[found]).all()


def test_a_few_rows_of_a_batch() -> None:
    made = first_rows(batch(), 2, 5)
    assert made.inputs.shape == made.targets.shape == (2, 5)
    assert first_rows(batch(), 9).inputs.shape == (4, 12)
    padded: Any = first_rows(batch()._replace(slots=Padded(torch.tensor([12, 5, 3, 2]), 12)), 2)
    assert padded.slots.lengths.tolist() == [12, 5]
    packed: Any = first_rows(batch()._replace(slots=Packed.of([[12], [5, 7], [3], [2, 2]], 12)), 2)
    assert (packed.slots.rows, packed.slots.documents) == (2, ((12,), (5, 7)))
