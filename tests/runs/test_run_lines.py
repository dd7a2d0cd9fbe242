"""Metrics and samples: valid JSON whatever is logged, torn lines, and the laws of `rewind`."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.runs import Run
from regard.runs.lines import StepLines

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
records = st.builds(
    lambda fields, step: {**fields, "step": step},
    st.dictionaries(st.text(), values, max_size=3),
    st.integers(0, 12),
)


def spelled(value: Any) -> Any:
    """What should come back: non-finite numbers as the words that `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, list):
        return [spelled(item) for item in value]
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    return value


def filled(folder: str, logged: list[dict[str, Any]]) -> StepLines:
    lines = StepLines(Path(folder) / "metrics.jsonl")
    for record in logged:
        lines.append(record)
    return lines


def fail_on_constant(name: str) -> None:
    raise AssertionError(name)


@given(st.lists(records, max_size=6))
def test_what_is_logged_is_read_and_stays_strict_json(logged: list[dict[str, Any]]):
    with tempfile.TemporaryDirectory() as folder:
        lines = filled(folder, logged)
        assert lines.read() == [spelled(record) for record in logged]
        if logged:
            for line in lines.path.read_text(encoding="ascii").split("\n")[:-1]:
                json.loads(line, parse_constant=fail_on_constant)


@given(st.lists(records, max_size=8), st.integers(-1, 13), st.data())
def test_rewind_keeps_exactly_the_records_up_to_the_step_byte_for_byte(
    logged: list[dict[str, Any]], step: int, data: st.DataObject
):
    with tempfile.TemporaryDirectory() as folder:
        lines = filled(folder, logged)
        whole = lines.path.read_bytes().splitlines(keepends=True) if logged else []
        expected = b"".join(line for line, record in zip(whole, logged, strict=True) if record["step"] <= step)
        if logged and data.draw(st.booleans(), "torn"):
            # the bytes of one more record, cut anywhere: never a record
            with open(lines.path, "ab") as file:
                file.write(whole[0][: data.draw(st.integers(0, len(whole[0]) - 2), "length")])
        lines.cut(step)
        assert (lines.path.read_bytes() if lines.path.exists() else b"") == expected
        lines.cut(step)  # twice is once
        assert (lines.path.read_bytes() if lines.path.exists() else b"") == expected
        lines.append({"step": step + 2, "again": True})
        assert lines.path.read_bytes().startswith(expected)
        assert lines.read()[-1] == {"step": step + 2, "again": True}
        assert [path.name for path in Path(folder).iterdir()] == ["metrics.jsonl"]


def test_a_run_rewinds_metrics_and_samples(run: Run):
    for step in range(5):
        run.log({"step": step, "loss": float(step)})
        run.sample({"step": step, "text": "\u2028é\n"})
    run.rewind(2)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]
    assert run.samples() == [{"step": step, "text": "\u2028é\n"} for step in range(3)]


def test_a_torn_last_line_is_passed_over_and_then_removed(run: Run):
    run.log({"step": 1, "loss": 1.5})
    metrics = run.path / "metrics.jsonl"
    whole = metrics.read_bytes()
    for length in range(1, len(whole) - 1):
        metrics.write_bytes(whole + whole[:length])
        assert run.metrics() == [{"step": 1, "loss": 1.5}]
        run.log({"step": 2})
        assert metrics.read_bytes() == whole + b'{"step": 2}\n'


def test_a_last_line_that_lacks_only_its_end_is_a_record(run: Run):
    metrics = run.path / "metrics.jsonl"
    metrics.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert run.metrics() == [{"step": 1}, {"step": 2}]
    run.log({"step": 3})
    assert metrics.read_bytes() == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


@pytest.mark.parametrize(
    "bad", [b"{", b"", b"[]", b'{"loss": 1}', b'{"step": NaN}', b'{"step": 1, "step": 2}', b"\xff"]
)
def test_damage_in_the_middle_is_reported_with_its_line(run: Run, bad: bytes):
    metrics = run.path / "metrics.jsonl"
    damaged = b'{"step": 1}\n' + bad + b'\n{"step": 2}\n{"step": 3}\n'
    metrics.write_bytes(damaged)
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl"):
        run.metrics()
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl"):
        run.rewind(2)
    assert metrics.read_bytes() == damaged
    run.rewind(1)  # nothing worth keeping follows the damage, so it goes with the rest
    assert metrics.read_bytes() == b'{"step": 1}\n'


def test_numbers_of_numpy_and_torch_are_numbers(run: Run):
    run.log(
        {
            "step": 1,
            "a": torch.tensor(0.5),
            "b": numpy.float32(0.25),
            "c": torch.tensor(float("nan")),
            "d": (1,),
        }
    )
    assert run.metrics() == [{"step": 1, "a": 0.5, "b": 0.25, "c": "NaN", "d": [1]}]


@pytest.mark.parametrize("record", [{}, {"step": -1}, {"step": 1.0}, {"step": True}, {"step": "1"}])
def test_a_record_needs_a_step(run: Run, record: dict[str, Any]):
    with pytest.raises(ValueError, match="step"):
        run.log(record)
    assert run.metrics() == []


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.zeros(2), b"bytes", Path("x")])
def test_what_json_cannot_hold_is_named_and_nothing_is_written(run: Run, value: object):
    with pytest.raises(TypeError, match=r"record\.deep"):
        run.log({"step": 1, "deep": value})
    assert run.metrics() == []
