"""Checks of the data, on real and made data: faults of arrays, texts, pairs and series are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_faults import (
    HEALTHY_IMAGES,
    IMAGE_FAULTS,
    PAIR_FAULTS,
    SERIES_FAULTS,
    SIGNAL_FAULTS,
    TEXT_FAULTS,
    change_validation_texts,
    classes,
    digits,
    judged,
    lower,
    named,
    pairs,
    prose,
    series,
    signals,
    tags,
)

from regard.data import (
    ImagesConfig,
    TextConfig,
)
from regard.data.images.arrays import LabeledImages
from regard.data.tokenizers.bytes import BytesConfig
from regard.tasks import ClassificationConfig


@pytest.mark.parametrize("name", IMAGE_FAULTS)
def test_it_names_a_fault_of_images(name: str) -> None:
    fault, expected = IMAGE_FAULTS[name]
    data = digits()
    data.train, data.validation = (
        LabeledImages(one.images.copy(), one.labels.copy()) for one in (data.train, data.validation)
    )
    fault(data)
    found = named(judged(data, ImagesConfig(source="digits", batch=64)))
    assert found, name
    assert found[0].startswith(expected), found


@pytest.mark.parametrize("options", HEALTHY_IMAGES, ids=str)
@pytest.mark.parametrize("size", [1, 64, 256])
def test_it_finds_nothing_in_sound_images(options: dict[str, Any], size: int) -> None:
    config = ImagesConfig(source="digits", **options)
    assert not [one.line() for one in judged(config.build(0), replace(config, batch=size))]


@pytest.mark.parametrize("name", SIGNAL_FAULTS)
def test_it_names_a_fault_of_signals(name: str) -> None:
    sound, fault, expected = SIGNAL_FAULTS[name]
    data = signals(sound)
    fault(data)
    found = named(judged(data, ImagesConfig(batch=16)))
    assert found, name
    assert found[0].startswith(expected), found


@pytest.mark.parametrize("sound", [False, True])
def test_it_finds_nothing_in_sound_signals(sound: bool) -> None:
    assert named(judged(signals(sound), ImagesConfig(batch=16))) == []


@pytest.mark.parametrize("name", TEXT_FAULTS)
def test_it_names_a_fault_of_labelled_texts(name: str, tmp_path: Path) -> None:
    options, fault, expected = TEXT_FAULTS[name]
    data, config = classes(tmp_path, **options)
    fault(data)
    task = ClassificationConfig(balanced=True).fit(data)
    if name == "weights by frequency":
        task = replace(task, weights=tuple(1 / weight for weight in task.weights))
    found = named(judged(data, config, task))
    assert found, name
    assert found[0].startswith(expected), found


@pytest.mark.parametrize("options", [{}, {"share": 0.1}, {"noise": 0.5}, {"tokens": 16, "keep": "end"}], ids=str)
def test_it_finds_nothing_in_sound_labelled_texts(options: dict[str, Any], tmp_path: Path) -> None:
    assert [one.line() for one in judged(*classes(tmp_path, **options))] == []


def test_it_names_wrong_tags(tmp_path: Path) -> None:
    data, config = tags(tmp_path)
    assert named(judged(data, config)) == []
    change_validation_texts(lambda batch: batch._replace(targets=batch.targets.roll(3, 1)))(data)
    assert named(judged(data, config)) == ["label_fault: validation labels"]


@pytest.mark.parametrize("name", PAIR_FAULTS)
def test_it_names_pairs_that_do_not_belong_together(name: str, tmp_path: Path) -> None:
    change, cause = PAIR_FAULTS[name]
    (found,) = judged(*pairs(tmp_path, change))
    assert (found.kind, found.where) == ("pair_fault", "training pairs")
    assert cause in found.cause


def test_it_names_faults_of_batches_of_pairs(tmp_path: Path) -> None:
    data, config = pairs(tmp_path)
    assert named(judged(data, config)) == []
    real = data._batch

    def mixed(part: Any, numbers: Any) -> Any:
        batch = real(part, numbers)
        return batch._replace(source=batch.source.roll(1, 0), source_lengths=batch.source_lengths.roll(1, 0))

    data._batch = mixed
    assert named(judged(data, config)) == ["pair_fault: training batches, pairs", "pair_fault: validation, pairs"]
    data._batch, held_out = real, data.validation
    data.validation = held_out._replace(sources=held_out.targets, targets=held_out.sources)
    assert named(judged(data, config))[0] == "pair_fault: validation pairs"


@pytest.mark.parametrize("name", SERIES_FAULTS)
def test_it_names_windows_that_are_cut_wrongly(name: str, tmp_path: Path) -> None:
    fault, expected, cause = SERIES_FAULTS[name]
    data, config = series(tmp_path)
    assert [one.line() for one in judged(data, config)] == []
    fault(data)
    found = judged(data, config)
    assert [f"{one.kind}: {one.where}" for one in found] == [expected]
    assert cause in found[0].cause


@pytest.mark.parametrize("change", ["one byte", "upper case", "another table"])
def test_it_names_batches_that_are_not_the_text(change: str, tmp_path: Path) -> None:
    tokenizer = {"kind": "bytes"} if change == "upper case" else {"kind": "words", "vocabulary": 500}
    from regard.config import override

    config = override(
        TextConfig(), [f"--tokenizer.{k}={v}" if k != "kind" else f"--tokenizer={v}" for k, v in tokenizer.items()]
    )
    data, config = prose(tmp_path, tokenizer=config.tokenizer)
    assert [one.line() for one in judged(data, config)] == []
    real = data._batch
    turned = {
        "one byte": lambda ids: ids % 256,
        "upper case": lower(data),
        "another table": lambda ids: (ids * 7 + 1) % data.vocabulary,
    }[change]
    data._batch = lambda inputs, targets: real(turned(inputs), np.where(targets < 0, targets, turned(targets)))
    (found,) = judged(data, config)
    assert (found.kind, found.where) == ("text_fault", "token ids of the training batches and validation")
    assert {"one byte": "8 bits", "upper case": "lower case", "another table": "another tokenizer"}[
        change
    ] in found.cause


@pytest.mark.parametrize("lower", [False, True])
def test_it_names_a_validation_text_in_another_case(lower: bool, tmp_path: Path) -> None:
    _, config = prose(tmp_path, tokenizer=BytesConfig())
    held_out = tmp_path / "validation.txt"
    text = Path(config.path).read_text()[:9000]
    held_out.write_text(text.upper() if lower else text)
    config = replace(config, validation_path=str(held_out))
    found = [one for one in judged(config.build(32), config) if one.kind == "text_fault"]
    assert [one.where for one in found] == ["validation text"] * lower
    assert all("lower case" in one.cause for one in found)
