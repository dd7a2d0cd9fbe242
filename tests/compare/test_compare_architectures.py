"""A whole tiny comparison: nothing is trained twice, and the page and the JSON hold what was measured."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from compare_kit import PLAIN, InProcess, keys
from docs import comparison

from regard import cli
from regard.commands.compare import CompareOptions, command_line, read_contenders, slug
from regard.compare import result, search
from regard.compare.budget import Budget
from regard.compare.page import binned, page, write
from regard.compare.result import JSON, ArchitectureComparison, TrainedContender, compare
from regard.compare.schedule import ComparisonSchedule, ComparisonSettings, schedule
from regard.compare.search import TriedRate, at_edge, best, next_factors
from regard.compare.sets import ComparisonSet
from regard.compare.words import sentences, table, text
from regard.errors import UserError
from regard.runs import Run

TEXTS = (
    f"gpt: shakespeare-small {PLAIN} --model.layers 1 --model.width 16",
    "rnn: shakespeare-rnn --model.layers 1 --model.width 24",
)
SETTINGS = ComparisonSettings(Budget.parse(["tokens=800", "steps=30"]), seeds=2, rates=2, workers=1)


def scheduled(folder: Path, settings: ComparisonSettings = SETTINGS) -> ComparisonSchedule:
    found = read_contenders(ComparisonSet("", TEXTS, ()), keys(folder))
    return schedule(*found, settings, folder / "out", lambda line: None)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    train = InProcess()
    for module in (search, result):
        monkeypatch.setattr(module, "train_trials", train)
    return train


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> ArchitectureComparison:
    """A comparison; its folder is that of its first run."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        for module in (search, result):
            patch.setattr(module, "train_trials", InProcess())
        found = compare(scheduled(folder), "tiny", "one thread", lambda line: None)
    write(found, folder / "out", "regard compare ...")
    return found


def test_nothing_is_trained_twice(tmp_path: Path, in_process: InProcess) -> None:
    settings = replace(SETTINGS, budget=Budget.parse(["steps=25"]), seeds=1)
    in_process.stop = 5
    with pytest.raises(KeyboardInterrupt):
        compare(scheduled(tmp_path, settings), "tiny", "", lambda line: None)
    in_process.stop = None
    found = compare(scheduled(tmp_path, settings), "tiny", "", lambda line: None)
    assert len(in_process.trained) == len(set(in_process.trained)) == 2 * 2 + 2  # rates, and a seed, of two contenders
    assert compare(scheduled(tmp_path, settings), "tiny", "", lambda line: None) == found
    compare(scheduled(tmp_path, replace(settings, seeds=2)), "tiny", "", lambda line: None)
    assert len(in_process.trained) == 6 + 2  # one more training for each


def test_contenders_have_the_same_seeds_and_lengths(compared: ArchitectureComparison) -> None:
    for place, length in enumerate(compared.lengths):
        for one in compared.contenders:
            assert [training.seed for training in compared.of(one.name, place)] == [1, 2]
            (steps,) = {training.steps for training in compared.of(one.name, place)}
            assert steps * (one.costs.step.tokens if length.measure == "tokens" else 1) == length.amount
            assert len(one.tried) == SETTINGS.rates
    assert len({one.loss for one in compared.trainings}) == len(compared.trainings)


def test_curves_end_with_the_loss_and_positions_fill_the_context(compared: ArchitectureComparison) -> None:
    for one in compared.trainings:
        assert one.curve[-1] == (one.steps, one.loss)
        assert len(one.curve) >= 8
        assert len(one.positions) == 16
        assert one.step_seconds is None or one.step_seconds > 0
    for one in compared.contenders:
        assert one.costs.decode is not None
        assert one.costs.decode > 0


def test_json_is_read_again(compared: ArchitectureComparison, tmp_path: Path) -> None:
    write(compared, tmp_path, "regard compare")
    assert ArchitectureComparison.read(tmp_path / JSON) == compared
    (tmp_path / JSON).write_text("{}")
    with pytest.raises(UserError, match="is no comparison"):
        ArchitectureComparison.read(tmp_path / JSON)


def test_the_page_holds_what_was_measured(compared: ArchitectureComparison) -> None:
    written = page(compared, "regard compare a b")
    for place in range(len(compared.lengths)):
        columns, rows = table(compared, place)
        assert [row[0] for row in rows] == [one.name for one, _ in compared.ranked(place)]
        assert len(columns) == len(rows[0])
        for one in compared.contenders:
            losses = compared.losses(one.name, place)
            assert f"{sum(losses) / 2:.4f} ± {12.706 * abs(losses[0] - losses[1]) / 2:.4f}" in written
            assert f"{one.costs.parameters:,}" in written
    assert len(re.findall("<figure>", written)) == 4 * len(compared.lengths) + 1  # three curves, positions; rates
    assert "regard compare a b" in written
    assert all(row[0] in text(compared) for row in rows)


def test_the_results_page_is_written_from_the_json(compared: ArchitectureComparison, tmp_path: Path) -> None:
    write(compared, tmp_path, "regard compare")
    text = tmp_path / "results.md"
    text.write_text(f"before\n\n{comparison.MARK}\n\nold\n\n{comparison.MARK}\n\nafter\n")
    for _ in range(2):  # the second time replaces what the first one wrote
        comparison.main(tmp_path / JSON, text, tmp_path)
        written = text.read_text()
        assert written.startswith("before\n")
        assert written.endswith("after\n")
        assert "old" not in written
        assert written.count("| gpt |") == len(compared.lengths)
    for length in compared.lengths:
        assert f"compare-{length.measure}.svg" in written
        assert (tmp_path / f"compare-{length.measure}.svg").read_text().startswith("<svg")


def test_a_diverged_training_is_named(compared: ArchitectureComparison) -> None:
    first = compared.trainings[0]
    bad = first._replace(loss=math.inf, curve=[], problem="diverged at step 3")
    found = replace(compared, trainings=[bad, *compared.trainings[1:]])
    assert "1 of 2 diverged" in page(found, "")
    assert found.record()["trainings"][0]["loss"] is None
    every = [one._replace(loss=math.inf, curve=[]) for one in compared.trainings]
    assert any("every training diverged" in line for line in sentences(replace(compared, trainings=every)))


def test_a_small_difference_is_not_told_apart(compared: ArchitectureComparison) -> None:
    def with_losses(*losses: float) -> list[TrainedContender]:
        return [one._replace(loss=losses[place % 4]) for place, one in enumerate(compared.trainings)]

    close = "\n".join(sentences(replace(compared, trainings=with_losses(1.0, 1.1, 1.02, 1.08))))
    assert "not told apart from" in close
    far = "\n".join(sentences(replace(compared, trainings=with_losses(1.0, 1.1, 3.0, 3.11))))
    assert "not told apart from" not in far


def test_unequal_times_are_said(compared: ArchitectureComparison) -> None:
    timed = replace(compared, lengths=[length._replace(measure="seconds") for length in compared.lengths])
    even = [one._replace(step_seconds=1 / one.steps) for one in compared.trainings]
    assert not any("not equally busy" in line for line in sentences(replace(timed, trainings=even)))
    slow = [one._replace(step_seconds=(1.5 if one.contender == "rnn" else 1) / one.steps) for one in even]
    assert any("rnn +20%" in line for line in sentences(replace(timed, trainings=slow)))


def test_the_total_is_the_sum_of_the_lines(tmp_path: Path) -> None:
    made = scheduled(tmp_path)
    alone = replace(made, workers=1)
    parts = made.searching + made.trainings(0) + made.trainings(1) + made.evaluations
    assert alone.total == pytest.approx(parts)
    assert replace(made, workers=2).total == pytest.approx(parts / 2)
    lines = "\n".join(made.arithmetic())
    for part in ("2 contenders x 2 trials", "2 contenders x 2 seeds", "8 in each", "sum / 1 worker"):
        assert part in lines


def test_rates_are_extended_at_the_edge_and_refined_inside() -> None:
    assert next_factors({}, 3) == [1 / 3, 1.0, 3.0]
    assert next_factors({1 / 3: 1.0, 1.0: 2.0, 3.0: 3.0}, 2) == [pytest.approx(1 / 9)]
    assert next_factors({1 / 3: 3.0, 1.0: 1.0, 3.0: 2.0}, 2) == [pytest.approx(3**0.5)]
    assert next_factors({1 / 3: math.inf, 1.0: math.inf, 3.0: math.inf}, 1) == [pytest.approx(1 / 9)]
    assert next_factors({1.0: 1.0}, 0) == []
    tried = [TriedRate(0.5, 1.0, 2.0), TriedRate(1.0, 2.0, 1.5), TriedRate(2.0, 4.0, 1.5)]
    assert best(tried) == tried[1]
    assert not at_edge(tried)
    assert at_edge(tried[:2])
    assert not at_edge(tried[:1])


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"seeds": 0}, "--seeds"),
        ({"rates": 0}, "--rates"),
        ({"workers": 0}, "--workers"),
        ({"share": 1.5}, "--share"),
        ({"scale": 0.0}, "--scale"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, changes: dict, part: str) -> None:
    with pytest.raises(UserError, match=part):
        scheduled(tmp_path, replace(SETTINGS, **changes))


def test_positions_are_averaged_in_bins() -> None:
    assert binned([1.0, 2.0, 3.0]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert binned([float(n) for n in range(64)])[0] == (3.5, 2.5)  # without the first two
    assert len(binned([1.0] * 500)) <= 31


def test_names_of_folders() -> None:
    assert slug(["a b/c", "../d"]) == "a-b-c-against-..-d"
    assert len(slug(["x" * 50, "y" * 50])) == 67


@pytest.mark.slow
def test_the_command_resumes_and_measures_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["compare", "gpt: toy-copy --model.heads 2", "lstm: toy-copy --model recurrent", "--json"]
    command += ["--model.width", "16", "--budget", "steps=25", "--seeds", "1", "--rates", "1", "--workers", "2"]
    command += ["--model.layers", "1", "--model.context", "64", "--data.size", "2", "--data.validation", "8"]
    command += ["--data.batch", "4", "--train.device", "cpu"]
    assert cli.main([*command, "--plan"]) == 0
    assert "seconds" in json.loads(capsys.readouterr().out)
    assert not list(tmp_path.rglob("metrics.jsonl"))
    assert cli.main(command) == 0
    first = json.loads(capsys.readouterr().out)
    for one in first["trainings"]:
        assert {"accuracy", "accuracy_1x", "accuracy_2x", "accuracy_4x"} <= set(one["test"])
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(files) == 2
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert all(Run.open(path.parent).planned_steps == 25 for path in files)
    assert Path(first["page"]).is_file()


def test_the_command_is_recorded() -> None:
    options = CompareOptions(budget=("seconds=3",), seeds=2, scale=0.05)
    written = command_line(["a", "b: c --d 1"], options, {"data.batch": "4"})
    assert written == "regard compare a 'b: c --d 1' --budget seconds=3 --seeds 2 --scale 0.05 --data.batch 4"
