"""Generated problems: answers by independent rules, batches as pure functions, accuracy by length."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.cli import main
from regard.data import IGNORE_INDEX, SyntheticConfig, SyntheticData
from regard.data.synthetic.problems import ALPHABET, BRACKETS, END, PROBLEMS, SEPARATOR
from regard.errors import UserError
from regard.models import GPTConfig
from regard.tasks import SolveConfig

SEEDS, SIZES = st.integers(0, 10**6), st.integers(1, 40)


def value(text: str) -> int:
    """An expression by Python's own parser."""
    names = {"[M": "max(", "[m": "min(", "[s": "total(", "]": ")"}
    for ours, theirs in names.items():
        text = text.replace(ours, theirs)
    spaced = "".join(f"{c}," if c.isdigit() or c == ")" else c for c in text).rstrip(",")
    return int(eval(spaced, {"max": max, "min": min, "total": lambda *numbers: sum(numbers) % 10}))


RULES: dict[str, Any] = {
    "copy": lambda prompt: prompt,
    "reverse": lambda prompt: "".join(reversed(prompt)),
    "sort": lambda prompt: "".join(sorted(prompt)),
    "selective-copy": lambda prompt: prompt.replace(".", ""),
    "recall": lambda prompt: prompt[prompt.index(prompt[-1]) + 1],
    "induction": lambda prompt: prompt[prompt.index(prompt[-1]) + 1],
    "nesting": lambda prompt: str(value(prompt)),
    "agreement": lambda prompt: "i" if prompt[0] == "S" else "a",
    "needle": lambda prompt: prompt[prompt.index("#") + 1],
    "parity": lambda prompt: str(sum(map(int, prompt)) % 2),
}


@given(st.sampled_from(sorted(RULES)), SEEDS, SIZES)
def test_answers_follow_the_rule(name: str, seed: int, size: int) -> None:
    prompt, answer = PROBLEMS[name].draw(Random(seed), size)
    assert set(prompt + answer) <= set(ALPHABET) - {SEPARATOR, END}
    assert answer == RULES[name](prompt)


@given(SEEDS, SIZES)
def test_closed_brackets_can_be_removed_in_pairs(seed: int, size: int) -> None:
    prompt, answer = PROBLEMS["brackets"].draw(Random(seed), size)
    text, before = prompt + answer, None
    while text != before:
        before = text
        for opening, closing in BRACKETS.items():
            text = text.replace(opening + closing, "")
    assert text == ""
    assert len(prompt) == size


def test_every_problem_has_a_rule() -> None:
    assert set(PROBLEMS) == {*RULES, "brackets"}


@given(st.sampled_from(sorted(PROBLEMS)), st.integers(1, 4), st.integers(1, 3), st.integers(0, 50), SEEDS)
def test_a_batch_is_its_parts(name: str, size: int, world: int, step: int, seed: int) -> None:
    data = SyntheticConfig(problem=name, size=6, validation=8).build(120)
    whole = data.batch(step, seed=seed, size=size * world)
    parts = [data.batch(step, seed=seed, rank=rank, world=world, size=size) for rank in range(world)]
    texts = [row[row >= 0].tolist() for row in whole.targets]
    assert texts == [row[row >= 0].tolist() for part in parts for row in part.targets]
    for inputs, targets in zip(whole.inputs, whole.targets, strict=True):
        start = int((targets != IGNORE_INDEX).int().argmax())
        text = data.tokenizer.decode(inputs[: start + 1].tolist())
        assert text.endswith(SEPARATOR)
        assert SEPARATOR not in text[:-1]
        answer = data.tokenizer.decode(targets[targets != IGNORE_INDEX].tolist())
        assert answer.endswith(END)
        assert name == "brackets" or answer == RULES[name](text[:-1]) + END
        places = (targets != IGNORE_INDEX).nonzero()[:-1, 0]  # the end is no input
        assert torch.equal(inputs[places + 1], targets[places])


@pytest.mark.parametrize("world", [1, 3])
def test_every_held_out_target_counts_once(world: int) -> None:
    data = SyntheticConfig(size=6, validation=10).build(80)
    for batches, count in ((data.validation_batches, data.validation_count), (data.test_batches, data.test_count)):
        parts = [list(batches(4, rank=rank, world=world)) for rank in range(world)]
        assert len({len(part) for part in parts}) == 1
        assert sum(int((batch.targets >= 0).sum()) for part in parts for batch in part) == count


def test_sizes_beyond_the_context_are_refused() -> None:
    with pytest.raises(UserError, match=r"set --model\.context"):
        SyntheticConfig(size=30).build(40)
    with pytest.raises(ValueError, match="did you mean reverse"):
        SyntheticConfig(problem="revers").check()


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_accuracy_counts_whole_answers_by_length(right: list[bool]) -> None:
    data = SyntheticConfig(problem="copy", size=4, longer=(1, 2), validation=6).build(40)
    assert isinstance(data, SyntheticData)
    task = SolveConfig().fit(data).build()
    (batch,) = data.test_batches(12)
    model = GPTConfig(vocabulary=len(ALPHABET), context=40, layers=1, heads=1, width=16).build().eval()
    logits = torch.nn.functional.one_hot(batch.targets.clamp(min=0), len(ALPHABET)).float()
    for row, good in enumerate(right):
        if not good:
            last = int((batch.targets[row] >= 0).nonzero()[-1])
            logits[row, last] = logits[row, last].roll(1)
    model.features, model.head = lambda *_: logits, lambda x: x  # type: ignore[method-assign, assignment]
    _, sums = task.measured(model, batch)
    found = task.metrics(sums)
    assert found["accuracy"] == pytest.approx(sum(right) / 12)
    assert found["accuracy_1x"] == pytest.approx(sum(right[::2]) / 6)
    assert found["accuracy_2x"] == pytest.approx(sum(right[1::2]) / 6)


def test_train_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--data.size=2", "--data.validation=16", "--model.context=40", "--train.steps=6"]
    assert main(["train", "toy-copy", *small, f"--runs={tmp_path}", "--name=a", "--doctor"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "a"), "--part=test", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {"accuracy", "accuracy_1x", "accuracy_2x", "accuracy_4x"} <= record.keys()
