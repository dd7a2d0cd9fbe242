"""Every layout gives the weights, gradients and losses of one process, and a run may change its layout."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from layout_rank import (
    CASES,
    CHANGES,
    LANES,
    MODELS,
    STEPS,
    Case,
    change,
    result,
    start_changing,
    write_text,
)
from torch import Tensor

from forked_ranks import run_ranks
from regard.errors import UserError
from regard.parallel.layout import Layout
from regard.parallel.world import World
from regard.runs import Run
from regard.train import Experiment, check_start, train
from regard.train.prepare import prepare

PROGRAM = Path(__file__).with_name("layout_rank.py")
SIZES = sorted({case.ranks for case in CASES})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text, for all ranks."""
    path = tmp_path_factory.mktemp("layouts")
    write_text(path)
    start_changing(path)
    return path


@pytest.fixture(scope="module")
def ranked(folder: Path, request: pytest.FixtureRequest) -> Any:
    """Starts the processes for a number of ranks, once, for the cases of the tests that are selected; returns these."""
    items: list[Any] = [item for item in request.session.items if hasattr(item, "callspec")]
    asked = [item.callspec.params.get("case") for item in items]

    @functools.cache
    def start(size: int) -> list[Case]:
        cases = [case for case in CASES if (case in asked or not case.slow) and case.ranks == size]
        run_ranks(PROGRAM, size, folder, *(case.name for case in cases))
        return cases

    return start


@pytest.fixture(scope="module")
def alone(folder: Path) -> Any:
    """The result of one process, by case; cases that differ in their layout only share it."""
    return functools.cache(
        lambda model, training: result(Case("", 1, Layout(), model, dict(training)), folder, World())
    )


def marks(size: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if size > 2 else []


def assembled(parts: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Whole tensors from the pieces of all ranks; what several ranks hold has to be the same to the bit."""
    found = {}
    for name, (shape, _) in parts[0].items():
        held = [piece for part in parts for piece in part[name][1]]
        whole, seen = torch.zeros(shape, dtype=held[0][1].dtype), torch.zeros(shape, dtype=torch.bool)
        for place, tensor in held:
            assert torch.equal(whole[place][seen[place]], tensor[seen[place]]), f"copies of {name} differ"
            whole[place], seen[place] = tensor, True
        assert seen.all(), f"no rank holds a part of {name}"
        found[name] = whole
    return found


def of_all(folder: Path, case: Case) -> list[dict[str, Any]]:
    found = [torch.load(folder / f"{case.name}.{rank}", weights_only=False) for rank in range(case.ranks)]
    assert "error" not in found[0], found[0]["error"]
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * case.slow) for case in CASES]
)
def test_a_layout_gives_what_one_process_gives(case: Case, folder: Path, ranked: Any, alone: Any) -> None:
    ranked(case.ranks)
    found, one = of_all(folder, case), alone(case.model, tuple((case.training or {}).items()))
    start, losses, end = zip(*(each["once"] for each in found), strict=True)
    again = zip(*(each["again"] for each in found), strict=True)
    want = assembled([one["gradients"]])
    got = assembled([each["gradients"] for each in found])
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=0, atol=1e-10 * max(1.0, float(gradient.abs().max())))
    assert [each["norm"] for each in found] == pytest.approx([one["norm"]] * case.ranks, rel=1e-10)
    initial = assembled([one["once"][0]])
    whole = assembled(list(start))
    assert whole.keys() == initial.keys()
    assert all(torch.equal(whole[name], initial[name]) for name in initial)
    assert all(each == losses[0] for each in losses)  # every rank knows the whole loss
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(one["once"][1]), rtol=0, atol=1e-5)
    repeated = list(again)
    assert list(losses) == list(repeated[1])
    first, second = assembled(list(end)), assembled(list(repeated[2]))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("size", [pytest.param(size, marks=marks(size)) for size in SIZES])
def test_an_update_has_one_host_reduction_and_one_reduction_of_each_shard(size: int, folder: Path, ranked: Any) -> None:
    """Two or one lanes a rank, with two micro-batches each or one: the blocks and the rest of the model are sharded."""
    groups = MODELS["gpt"].layers + 1
    for case in (case for case in ranked(size) if case.layout == Layout()):
        said = [each["said"] for each in of_all(folder, case)]
        assert [text.count("whole gradients") for text in said] == [0 if case.room else 1] + [0] * (size - 1)
        counts = of_all(folder, case)[0]["collectives"]
        assert counts["allreduce_"] + counts.get("all_reduce", 0) == 1, case.name
        assert counts["_reduce_scatter_base_"] == groups * (1 if case.room else LANES // size), case.name


def test_the_time_in_which_a_rank_waits_is_not_its_work(folder: Path, ranked: Any) -> None:
    """Rank 1 takes a second for each of its two lanes, and both ranks gather weights for much longer."""
    ranked(2)
    assert [each["seconds"] for each in of_all(folder, CASES[0])] == [(0.0, 2.0)] * 2


@pytest.mark.slow
def test_a_run_goes_from_two_ranks_to_four_to_one(folder: Path, alone: Any) -> None:
    """Each loads what the ones before have saved, to the bit, and goes on as one process would have done."""
    for size in CHANGES:
        run_ranks(PROGRAM, size, folder, "changes")
    run = Run.open(folder / "runs" / "changes")
    assert set(run.steps()) == set(CHANGES.values())
    loaded = {4: [torch.load(folder / f"changes-4.{rank}", weights_only=False) for rank in range(4)]}
    loaded[1] = [change(folder, World())]
    for size, step in ((4, CHANGES[2]), (1, CHANGES[4])):
        checkpoint, found = run.checkpoint(step), assembled(loaded[size])
        saved = checkpoint.model() | checkpoint.optimizer()
        assert found.keys() == saved.keys()
        assert all(torch.equal(found[name], saved[name]) for name in saved)
    losses = torch.tensor([float(record["loss"]) for record in run.metrics() if "loss" in record])
    torch.testing.assert_close(losses, torch.tensor(alone("gpt", ())["once"][1][:STEPS]), rtol=0, atol=1e-5)


def test_ranks_that_cannot_share_the_lanes_are_refused_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_changing(folder, "refused")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    refusal = r"4 lanes, which 3 parts .* let replicate x shard divide 4"
    with pytest.raises(UserError, match=refusal):
        prepare(run.load(Experiment), run, World(0, 3, layout=Layout().of(3)), 0.0, resume=True)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match=refusal):
        check_start(run.load(Experiment))
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match=r"shard 2 .* needs 2 processes, but this is 1 process"):
        train(run.load(Experiment), run, layout=Layout(shard=2))
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
