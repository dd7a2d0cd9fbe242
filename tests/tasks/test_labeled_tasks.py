"""Fine-tuning tasks: losses against their definition, measures against scikit-learn's and seqeval's formulas."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from regard.attention import Padded
from regard.data import AnswersConfig, BytesConfig, ClassesConfig, LabeledBatch, TagsConfig
from regard.errors import UserError
from regard.generate.predict import Predictor
from regard.models import EncoderConfig
from regard.tasks import AnsweringConfig, ClassificationConfig, TaggingConfig
from regard.tasks.entities import entities, has_entities
from regard.tasks.labeled import best_spans, classification_metrics, window_means

MODEL = EncoderConfig(vocabulary=256, context=32, layers=1, heads=2, width=16, token_types=2)
TAGS = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_accuracy_and_f1_equal_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    given_labels, predicted = map(list, zip(*pairs, strict=True))
    confusion = torch.zeros(4, 4, dtype=torch.float64)
    for one, other in pairs:
        confusion[one, other] += 1
    found = classification_metrics(confusion)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(given_labels, predicted))
    expected = metrics.f1_score(given_labels, predicted, average="macro", zero_division=0)
    assert found["f1"] == pytest.approx(expected)


@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_entities_equal_seqeval(tags):
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert entities(tags) == set(labeling.get_entities(tags))


def test_entities_of_an_example():
    tags = ["B-PER", "I-PER", "O", "I-LOC", "I-PER", "B-PER", "S-LOC", "E-LOC"]
    found = {("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4), ("PER", 5, 5), ("LOC", 6, 6), ("LOC", 7, 7)}
    assert entities(tags) == found
    assert has_entities(("O", "B-PER", "I-PER"))
    assert not has_entities(("O", "nn", "vb"))
    assert not has_entities(("I-x",))


@given(st.integers(0, 2**16), st.integers(2, 9), st.integers(1, 9))
def test_the_best_span_is_the_best_of_all(seed, length, longest):
    logits = torch.randn(1, 2, length, generator=torch.Generator().manual_seed(seed))
    spans = [(a, b) for a in range(length) for b in range(a, min(length, a + longest))]
    best = max(spans, key=lambda span: float(logits[0, 0, span[0]] + logits[0, 1, span[1]]))
    assert best_spans(logits, longest)[0].tolist() == list(best)


def examples(tmp_path, config, lines):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return replace(config, path=str(path), validation=0.0, test=0.0, tokenizer=BytesConfig()).build(32, tmp_path)


def prepared(tmp_path, task, config, lines) -> tuple[Any, Any, Any]:
    """The task, its model and a batch."""
    data = examples(tmp_path, config, lines)
    fitted = task.fit(data)
    torch.manual_seed(0)
    model = fitted.model_for(MODEL, data).build().double().eval()
    return fitted.build(), model, data.batch(0, seed=0, size=10_000)


def test_classes_with_weights(tmp_path):
    lines = [{"text": f"text {'x' * n}", "label": "abb"[n % 3]} for n in range(9)]
    task, model, batch = prepared(tmp_path, ClassificationConfig(balanced=True), ClassesConfig(), lines)
    weight = torch.tensor(task.config.weights).double()
    assert weight.tolist() == pytest.approx([9 / (2 * 3), 9 / (2 * 6)])  # scikit-learn's "balanced"
    logits = model(batch.inputs, batch.slots, batch.types)
    expected = F.cross_entropy(logits, batch.targets[:, 0], weight, reduction="sum")
    terms, sums = task.measured(model, batch)
    torch.testing.assert_close(terms["label"].total, expected)
    assert int(terms["label"].count) == int(task.counts(batch)["label"]) == 9
    right = (logits.argmax(1) == batch.targets[:, 0]).double().mean()
    assert task.metrics(sums)["accuracy"] == pytest.approx(float(right))


@pytest.fixture
def windowed(tmp_path) -> tuple[Any, Any, Any]:
    """A task, its model, and validation texts of 1 to 57 bytes that are read in windows of 8."""
    lines = [
        {"text": "".join(chr(60 + (n * k) % 50) for k in range(1 + 7 * n)), "label": "abb"[n % 3]} for n in range(9)
    ]
    config = ClassesConfig(tokens=8, windows=16, validation_path=str(tmp_path / "a.jsonl"))
    data = examples(tmp_path, config, lines)
    task = ClassificationConfig(pool="mean", weights=(1.0, 3.0)).fit(data)
    torch.manual_seed(0)
    return task.build(), task.model_for(MODEL, data).build().double().eval(), data


@torch.no_grad()
def test_windows_of_a_text_are_averaged(windowed):
    task, model, data = windowed
    (batch,) = data.validation_batches(10_000)
    assert (len(batch.targets), len(batch.inputs)) == (9, sum(-(-(1 + 7 * n) // 8) for n in range(9)))
    terms, sums = task.measured(model, batch)
    total, right = 0.0, 0
    for text, target in enumerate(batch.targets[:, 0].tolist()):
        alone = []  # each window by itself, without padding
        for row in (batch.texts == text).nonzero()[:, 0].tolist():
            length = int(batch.slots.lengths[row])
            logits = model(batch.inputs[row : row + 1, :length], None, batch.types[row : row + 1, :length])
            alone.append(logits[0].log_softmax(0))
        mean = torch.stack(alone).mean(0)
        total -= task.config.weights[target] * float(mean[target])
        right += int(mean.argmax()) == target
    assert float(terms["label"].total) == pytest.approx(total)
    assert int(terms["label"].count) == 9
    assert task.metrics(sums)["accuracy"] == pytest.approx(right / 9)


@torch.no_grad()
def test_the_measure_of_windows_does_not_depend_on_the_batches(windowed):
    task, model, data = windowed
    found = []
    for size, world in ((1, 1), (40, 1), (10_000, 1), (20, 2)):
        batches = [one for rank in range(world) for one in data.validation_batches(size, rank=rank, world=world)]
        terms, sums = zip(*(task.measured(model, batch) for batch in batches), strict=True)
        found.append((float(sum(one["label"].total for one in terms)), torch.stack(sums).sum(0).tolist()))
    assert all(one == (pytest.approx(found[0][0]), found[0][1]) for one in found)


@torch.no_grad()
def test_a_prediction_averages_windows_as_the_evaluation_does(windowed, tmp_path):
    _, model, data = windowed
    texts = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    predicted = Predictor(model, data.tokenizer, longest=8, keep="both", windows=16).classes(texts)
    (batch,) = data.validation_batches(10_000)
    logs = window_means(model(batch.inputs, batch.slots, batch.types).log_softmax(-1), batch.texts, 9)
    # the batch is in the order of lengths, and so are the texts of the file
    expected = logs.softmax(-1).tolist()
    assert [list(one.probabilities.values()) for one in predicted] == [pytest.approx(row, rel=1e-4) for row in expected]


def test_padding_changes_no_class(tmp_path):
    lines = [{"text": "x" * (1 + 3 * n), "label": "ab"[n % 2]} for n in range(4)]
    for pool in ("cls", "mean"):
        _, model, batch = prepared(tmp_path, ClassificationConfig(pool=pool), ClassesConfig(), lines)
        whole = model(batch.inputs, batch.slots, batch.types)
        for row, length in enumerate(batch.slots.lengths.tolist()):
            alone = model(batch.inputs[row : row + 1, :length], None, batch.types[row : row + 1, :length])
            torch.testing.assert_close(alone[0], whole[row])


def test_tags_and_entities(tmp_path):
    lines = [
        {"words": ["Ann", "Lee", "saw", "Rome"], "tags": ["B-PER", "I-PER", "O", "B-LOC"]},
        {"words": ["he", "ran"], "tags": ["O", "O"]},
    ]
    task, model, batch = prepared(tmp_path, TaggingConfig(), TagsConfig(), lines)
    terms, sums = task.measured(model, batch)
    logits = model(batch.inputs, batch.slots, batch.types)
    counted = batch.targets >= 0
    assert int(counted.sum()) == int(terms["tag"].count) == 6
    torch.testing.assert_close(
        terms["tag"].total, F.cross_entropy(logits[counted], batch.targets[counted], reduction="sum")
    )
    assert task.best == "entity_f1"
    perfect = F.one_hot(batch.targets.clamp(min=0), len(task.config.labels)).double()
    assert task.metrics(task._statistics(perfect, batch.targets)) == {
        "accuracy": 1.0,
        "f1": 1.0,
        "entity_precision": 1.0,
        "entity_recall": 1.0,
        "entity_f1": 1.0,
    }
    assert 0 <= task.metrics(sums)["entity_f1"] < 1


def test_answers_are_in_the_passage(tmp_path):
    lines = [{"question": "who?", "context": "a cat sat", "answer": "cat"}, {"question": "why?", "context": "no"}]
    task, model, batch = prepared(tmp_path, AnsweringConfig(), AnswersConfig(), lines)
    terms, sums = task.measured(model, batch)
    outputs = model(batch.inputs, batch.slots, batch.types)
    possible = (batch.types == 1) | (torch.arange(outputs.shape[1]) == 0)
    total = sum(
        F.cross_entropy(outputs[:, :, end].masked_fill(~possible, -torch.inf), batch.targets[:, end], reduction="sum")
        for end in (0, 1)
    )
    torch.testing.assert_close(terms["span"].total, torch.as_tensor(total))
    assert int(terms["span"].count) == 4
    assert set(task.metrics(sums)) == {"span_exact", "span_f1"}


def test_a_task_refuses_other_data(tmp_path):
    data = examples(tmp_path, AnswersConfig(), [{"question": "who?", "context": "a cat", "answer": "cat"}])
    with pytest.raises(UserError, match="needs labels"):
        ClassificationConfig().fit(data)
    labeled = examples(tmp_path, ClassesConfig(), [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    with pytest.raises(UserError, match="1 weights are given for 2 classes"):
        ClassificationConfig(weights=(1.0,)).fit(labeled)


def test_an_empty_part_of_a_rank_counts_nothing(tmp_path):
    lines = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    task, model, batch = prepared(tmp_path, ClassificationConfig(), ClassesConfig(), lines)
    empty = LabeledBatch(batch.inputs[:1], torch.full((1, 1), -1), Padded(torch.tensor([3]), 3), batch.types[:1])
    terms, sums = task.measured(model, empty)
    assert (terms["label"].total.item(), int(terms["label"].count), float(sums.sum())) == (0.0, 0, 0.0)
