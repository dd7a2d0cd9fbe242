"""Labelled time series: .ts files, their damage, and the commands on a run."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from regard.cli import main
from regard.data import LabeledSeriesConfig, SeriesConfig
from regard.data.series.ts import TEST, read_archive
from regard.data.sources.vowels import SOURCE
from regard.errors import UserError

HEADER = "#made\n@problemName Two\n@classLabel true up down\n@data\n"


def line(number: int) -> str:
    """A rise or a fall, of 4 to 8 points and two dimensions."""
    values = np.linspace(0, 1, 4 + number % 5) + number / 100
    values = values if number % 2 == 0 else values[::-1]
    one = ",".join(f"{value:.3f}" for value in values)
    return f"{one}:{one}:{('up', 'down')[number % 2]}\n"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "Two_TEST.ts").write_text(HEADER + "".join(line(n) for n in range(40, 46)))
    path = tmp_path / "Two_TRAIN.ts"
    path.write_text(HEADER + "".join(line(n) for n in range(40)))
    return path


def test_an_archive_is_read_with_the_test_part_beside_it(archive: Path) -> None:
    data = LabeledSeriesConfig(path=str(archive), validation=0.2).build(0)
    assert data.labels == ("up", "down")
    assert (data.count, data.validation_count, data.test_count) == (32, 8, 6)
    batch = next(data.test_batches(6))
    assert batch.inputs.shape == (6, 8, 2)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [4, 5, 6, 7, 8, 4]
    assert batch.targets[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert batch.inputs[1, 0, 0] == pytest.approx(1.41)
    assert batch.inputs[1, 5:].abs().sum() == 0
    joined = archive.with_name("one.ts")
    joined.write_text(archive.read_text().strip() + TEST + archive.with_name("Two_TEST.ts").read_text())
    assert LabeledSeriesConfig(path=str(joined), validation=0.2).build(0).sha256 == data.sha256


def test_the_source_joins_both_parts(tmp_path: Path) -> None:
    train, test = SOURCE.origin.members  # type: ignore[attr-defined]
    members = {train: (HEADER + line(0)).encode(), test: (HEADER + line(1) + line(2)).encode()}
    path = tmp_path / SOURCE.file
    path.write_bytes(SOURCE.origin.assemble(members))  # type: ignore[attr-defined]
    found = read_archive(path)
    assert [len(part.values) for part in found[:2]] == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "no .ts file with classes"),
        (HEADER, "no examples"),
        (HEADER + "1,2:3:up\n", "line 5 .* different lengths"),
        (HEADER + "1,?:3,4:up\n", "line 5 .* correct the file"),
        (HEADER + "1,nan:3,4:up\n", "a number is missing"),
        (HEADER + "1,2:3,4:left\n", "line 5"),
        (HEADER + "1,2:up\n" + line(0), "different numbers of dimensions"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.ts"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        LabeledSeriesConfig(path=str(path)).build(0)


def test_a_hundred_damaged_tables_are_read_or_refused(archive: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    content = "a,b\n" + "".join(f"{n},{n % 7}\n" for n in range(60))
    draw = random.Random(4)
    for number in range(100):
        for path, whole in ((archive, HEADER + "".join(line(n) for n in range(10))), (table, content)):
            damaged = bytearray(whole.encode())
            for _ in range(1 + number % 5):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            path.write_bytes(damaged[: draw.randrange(len(damaged))] if number % 3 == 0 else damaged)
            with suppress(UserError):  # no other error
                if path == archive:
                    LabeledSeriesConfig(path=str(path)).build(0)
                else:
                    SeriesConfig(path=str(path), points=8, horizon=2).build(0)


def test_a_run_predicts_evaluates_and_looks(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "v")
    sizes = ["--model.layers", "1", "--model.width", "16", "--train.steps", "40", "--train.optimizer.lr", "3e-3"]
    where = ["--runs", str(tmp_path), "--name", "v", "--data.path", str(archive)]
    assert main(["train", "vowels", *where, *sizes, "--data.validation", "0.2"]) == 0
    capsys.readouterr()
    assert main(["predict", run, str(archive.with_name("Two_TEST.ts")), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["given"] for one in answers] == ["up", "down"] * 3
    table = tmp_path / "one.csv"
    table.write_text("x,y\n0.1,0.1\n0.5,0.5\n0.9,0.9\n")
    assert main(["predict", run, str(table)]) == 0
    assert main(["evaluate", run, "--part", "test"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["look", run]) == 0
    table.write_text("x\n0.1\n")
    capsys.readouterr()
    assert main(["predict", run, str(table)]) != 0
    assert "1 numbers at each point" in capsys.readouterr().err
    assert main(["predict", run, str(archive), "--out", str(tmp_path / "f.svg")]) != 0
    assert "no charts" in capsys.readouterr().err
