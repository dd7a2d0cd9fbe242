"""Detection: the matching is the cheapest, the average precision that of its definition, and a small model learns."""

from __future__ import annotations

from itertools import permutations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from regard.data import ImagesConfig, ScenesConfig
from regard.data.base import IGNORE_INDEX
from regard.data.scenes.data import SceneBatch
from regard.errors import UserError
from regard.models import DetectorConfig
from regard.nn.boxes import overlap
from regard.tasks import DetectionConfig, ImageClassificationConfig
from regard.tasks.detection import DetectionTask, mean_average_precision, precision_counts

SEEDS = st.integers(0, 2**32 - 1)
TASK = DetectionTask(DetectionConfig(labels=tuple("abc")))


def boxes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, 4, generator=generator, dtype=torch.float64) * 0.5 + 0.1


def batch(seed: int, rows: int = 3) -> tuple[SceneBatch, torch.Tensor, torch.Tensor]:
    """Objects, and the class logits and boxes of five queries, some of them near an object."""
    generator = torch.Generator().manual_seed(seed)
    given = boxes(generator, rows, 4)
    targets = torch.randint(-1, 3, (rows, 4), generator=generator)
    none = torch.zeros(rows, 8, dtype=torch.long)
    found = boxes(generator, rows, 5)
    near = torch.rand(rows, 4, 1, generator=generator, dtype=torch.float64) < 0.7
    found[:, :4] = torch.where(near, given + 0.01, found[:, :4])
    logits = torch.randn(rows, 5, 4, generator=generator, dtype=torch.float64) * 2
    return SceneBatch(torch.zeros(rows, 3, 6, 6), targets, given, none, none), logits, found


@given(SEEDS)
def test_the_overlap_of_boxes_on_a_grid_is_that_of_their_pixels(seed: int) -> None:
    corners = np.sort(
        np.random.default_rng(seed).integers(0, 9, (2, 2, 2)), axis=1
    )  # [box, low or high, column or row]
    corners[:, 1] += 1
    low, high = torch.from_numpy(corners).double().unbind(1)
    one, two = torch.cat(((low + high) / 2, high - low), dim=1)
    masks = np.zeros((2, 10, 10), bool)
    for mask, ((left, top), (right, bottom)) in zip(masks, corners, strict=True):
        mask[top:bottom, left:right] = True
    union, around = (masks[0] | masks[1]).sum(), np.prod(corners[:, 1].max(0) - corners[:, 0].min(0))
    iou, general = (float(x) for x in overlap(one, two))
    assert iou == pytest.approx((masks[0] & masks[1]).sum() / union)
    assert general == pytest.approx(iou - (around - union) / around)


@given(SEEDS)
def test_the_matching_is_the_cheapest(seed: int) -> None:
    given, logits, found = batch(seed)
    rows, queries, objects = TASK.match(logits, found, given)
    shares = logits.softmax(-1)
    for row in range(len(logits)):
        present = [n for n in range(4) if given.targets[row, n] != IGNORE_INDEX]

        def cost(query: int, place: int, row: int = row) -> float:
            apart = (found[row, query] - given.boxes[row, place]).abs().sum()
            general = overlap(found[row, query], given.boxes[row, place])[1]
            return float(5 * apart - 2 * general - shares[row, query, given.targets[row, place]])

        own = rows == row
        pairs = list(zip(queries[own].tolist(), objects[own].tolist(), strict=True))
        assert sorted(place for _, place in pairs) == present
        assert len({query for query, _ in pairs}) == len(pairs)
        best = min(
            sum(cost(query, place) for query, place in zip(chosen, present, strict=True))
            for chosen in permutations(range(5), len(present))
        )
        assert sum(cost(*pair) for pair in pairs) == pytest.approx(best)


def average_precision(given: SceneBatch, shares: torch.Tensor, found: torch.Tensor) -> float:
    """By its definition: all boxes of a class in order of their scores."""
    results = []
    for label in range(3):
        objects = {(r, n) for r, n in (given.targets == label).nonzero().tolist()}
        if not objects:
            continue
        chosen = (shares.argmax(-1) == label).nonzero().tolist()
        chosen.sort(key=lambda one: -float(shares[one[0], one[1], label]))
        free, right = set(objects), []
        for row, query in chosen:
            near = [(float(overlap(found[row, query], given.boxes[r, n])[0]), (r, n)) for r, n in objects if r == row]
            best = max(near, default=(0.0, (0, 0)))
            right.append(best[0] >= 0.5 and best[1] in free)
            free -= {best[1]} if right[-1] else set()
        hits = np.cumsum(right)
        precision = hits / np.arange(1, len(hits) + 1)
        best_later = np.maximum.accumulate(precision[::-1])[::-1] if len(hits) else precision
        results.append(float((best_later * np.array(right)).sum()) / len(objects))
    return float(np.mean(results)) if results else 0.0


@given(SEEDS)
def test_the_average_precision_is_that_of_its_definition(seed: int) -> None:
    given, logits, found = batch(seed, rows=6)
    shares = logits.softmax(-1)[..., :3]
    scores = (shares.max(-1).values * 1000).long().flatten().tolist()
    halves = [SceneBatch(*(x[part] for x in given)) for part in (slice(0, 2), slice(2, 6))]
    parts = [
        precision_counts(shares[a], found[a], one) for a, one in zip((slice(0, 2), slice(2, 6)), halves, strict=True)
    ]
    whole = precision_counts(shares, found, given)
    assert torch.equal(sum(parts[1:], parts[0]), whole)  # statistics of batches may be added
    if len(set(scores)) == len(scores):  # no two scores in one bin
        measured = mean_average_precision(whole.view(3, -1))
        assert measured == pytest.approx(average_precision(given, shares, found), abs=1e-9)


def test_the_loss_is_that_of_the_pairs_and_of_no_object() -> None:
    given, logits, found = batch(3)

    class Fixed(torch.nn.Module):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return torch.cat((logits, found.logit()), dim=-1)

    terms = TASK.terms(Fixed(), given)  # type: ignore[arg-type]
    rows, queries, objects = TASK.match(logits, found, given)
    logs, pairs = logits.log_softmax(-1), set(zip(rows.tolist(), queries.tolist(), strict=True))
    want = sum(-float(logs[r, q, given.targets[r, o]]) for r, q, o in zip(rows, queries, objects, strict=True))
    want += sum(-0.1 * float(logs[r, q, 3]) for r in range(3) for q in range(5) if (r, q) not in pairs)
    assert float(terms["class"].total) == pytest.approx(want)
    apart = (found[rows, queries] - given.boxes[rows, objects]).abs().sum()
    assert float(terms["box"].total) == pytest.approx(float(apart))
    assert {name: float(term.count) for name, term in terms.items()} == {
        name: float(count) for name, count in TASK.counts(given).items()
    }


def test_a_small_detector_overfits_a_batch_and_names_what_it_finds() -> None:
    data = ScenesConfig(scenes=8).build(0)
    config = DetectionConfig().fit(data)
    torch.manual_seed(1)
    sizes = DetectorConfig(image=24, patch=4, layers=2, decoder_layers=1, heads=2, width=32, queries=5)
    model, task = config.model_for(sizes.reading(None, data.shape), data).build(), config.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    given = data.part_batch("train", np.arange(4))
    for _ in range(120):
        terms = task.terms(model, given)  # type: ignore[arg-type]
        loss = sum(term.weight * term.total / term.count for term in terms.values())
        optimizer.zero_grad()
        torch.as_tensor(loss).backward()
        optimizer.step()
    model.eval()
    assert isinstance(task, DetectionTask)
    with torch.no_grad():
        _, sums = task.measured(model, given)  # type: ignore[arg-type]
        answers = task.predictions(model, given)  # type: ignore[arg-type]
    assert task.metrics(sums)["map_50"] > 0.9
    for row, answer in enumerate(answers):
        wanted = sorted(str(digit) for digit in given.targets[row].tolist() if digit >= 0)
        assert sorted(one["label"] for one in answer.record["objects"]) == wanted


def test_data_and_models_that_do_not_fit_are_refused() -> None:
    data = ScenesConfig(scenes=4).build(0)
    with pytest.raises(UserError, match="cannot learn from"):
        ImageClassificationConfig().fit(data)
    with pytest.raises(UserError, match="queries must be at least 1"):
        DetectorConfig(queries=0).build()
    with pytest.raises(UserError, match="cannot learn from"):
        DetectionConfig().fit(ImagesConfig().build(0))
