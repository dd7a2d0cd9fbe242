"""Forecasts of time series: windows, scales, losses, models and the commands on a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.cli import main
from regard.data import SeriesConfig
from regard.data.series.table import read_series
from regard.data.split import split
from regard.errors import UserError
from regard.models import DLinearConfig, PatchTSTConfig
from regard.models.forecast import ForecastHeadConfig
from regard.nn.signals import PatchesConfig
from regard.tasks import ForecastConfig
from regard.tasks.forecast import pinball

ROWS = 120


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("series") / "waves.csv"
    lines = [f"day {t},{10 + 3 * math.sin(t / 2):.4f},{t}" for t in range(ROWS)]
    path.write_text("when,wave,count\n" + "\n".join(lines) + "\n")
    return path


def config(path: Path, **options: object) -> SeriesConfig:
    return replace(SeriesConfig(path=str(path), points=16, horizon=4, batch=8), **options)  # type: ignore[arg-type]


@given(st.integers(1, 20), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.25]), st.integers(60, ROWS))
def test_every_window_is_the_table_and_no_target_is_in_two_parts(
    table: Path, points: int, horizon: int, share: float, limit: int
) -> None:
    given = config(table, points=points, horizon=horizon, validation=share, test=share, limit=limit)
    parts = split(limit, share, share)
    if any(0 < part.size < horizon for part in parts) or parts.train.size < points + horizon:
        with pytest.raises(UserError, match=r"lower --data.points or --data.horizon"):
            given.build(0)
        return
    data = given.build(0)
    counts = (data.count, data.validation_count, data.test_count)
    for part, span, count in zip(("train", "validation", "test"), parts, counts, strict=True):
        if not span.size:
            assert not count
            continue
        batch = data.part_batch(part, np.arange(count or 0))
        rows = torch.cat((batch.inputs, batch.targets), dim=1)[..., 1].double()
        rows = (rows * data.scale.deviations[1] + data.scale.means[1]).round().long()  # this column counts the rows
        assert (rows.diff(dim=1) == 1).all()
        assert rows[:, points].diff().eq(1).all()  # one window after the other, none left out
        start = max(span.start, points)
        assert set(rows[:, points:].flatten().tolist()) == set(range(start, span.stop))


def test_the_scale_is_that_of_the_training_part(table: Path) -> None:
    data = config(table, validation=0.2, test=0.2).build(0)
    train = read_series(table).values[:72]
    np.testing.assert_allclose(data.scale.means, train.mean(0))
    np.testing.assert_allclose(data.scale.deviations, train.std(0))
    assert data.columns == ("wave", "count")
    assert data.part_batch("test", np.zeros(1, np.int64), counts=False).targets.isnan().all()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n1,2\n3,x\n", {}, "row 2 .* has 'x' as 'b', which is no number"),
        ("a,b\n1,2\n3,nan\n", {}, "row 2 .* has 'nan'"),
        ("a,b\nx,y\n", {}, "no column of numbers; it has a, b"),
        ("a\n1\n", {"columns": ("c",)}, "no column 'c'; it has a"),
        ("a\n" + "1\n" * 12, {}, "lower --data.points or --data.horizon"),
        ("", {}, "has no records"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, content: str, options: dict, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        config(path, **options).build(0)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=40), st.floats(0.05, 0.95))
def test_the_pinball_loss_is_least_at_the_quantile(values: list[float], q: float) -> None:
    y = torch.tensor(values, dtype=torch.float64)

    def loss(forecast: torch.Tensor) -> float:
        return float(pinball((y - forecast)[:, None], [q]).sum())

    best = loss(torch.quantile(y, q, interpolation="lower"))
    assert all(best <= loss(other) + abs(2 * (y.max() - y.min())) * 1e-9 + 1e-9 for other in y) or min(
        map(loss, y)
    ) == pytest.approx(loss(torch.quantile(y, q, interpolation="higher")))


MODELS = {
    "patchtst": PatchTSTConfig(points=16, layers=1, embed=PatchesConfig(size=4, stride=2, repeat=True)),
    "dlinear": DLinearConfig(points=16, normalize=True),
    "linear": DLinearConfig(points=16, kernel=1, normalize=True),
}


@pytest.mark.parametrize("name", MODELS)
@given(st.floats(0.1, 100), st.floats(-100, 100))
def test_forecasts_follow_level_and_scale_and_series_do_not_mix(name: str, factor: float, level: float) -> None:
    torch.manual_seed(3)
    head = ForecastHeadConfig(5, (0.1, 0.5, 0.9))
    model = replace(MODELS[name], head=head).build().double().eval()
    series = torch.randn(2, 16, 3, dtype=torch.float64)
    with torch.no_grad():
        found = model(series)
        assert found.shape == (2, 5, 3, 3)
        torch.testing.assert_close(model(series * factor + level), found * factor + level, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(model(series[..., 1:2]), found[:, :, 1:2])  # channel independence
        with pytest.raises(UserError, match="forecasts from 16 points, not from 15"):
            model(series[:, 1:])


def test_dlinear_is_a_linear_map_of_trend_and_rest() -> None:
    torch.manual_seed(3)
    model = DLinearConfig(points=30, kernel=7, head=ForecastHeadConfig(4)).build().double()
    x = torch.randn(1, 30, 1, dtype=torch.float64)
    padded = np.pad(x[0, :, 0].numpy(), 3, mode="edge")
    trend = torch.from_numpy(np.convolve(padded, np.ones(7) / 7, "valid"))
    rest, slow = (cast(torch.nn.Linear, block).weight for block in model.blocks)
    want = rest @ (x[0, :, 0] - trend) + slow @ trend + model.bias
    torch.testing.assert_close(model(x)[0, :, 0, 0], want)


def test_measures_equal_their_definitions(table: Path) -> None:
    data = config(table).build(0)
    for quantiles in ((), (0.1, 0.5, 0.9)):
        task = ForecastConfig(quantiles)
        model = task.fit(data).model_for(replace(MODELS["patchtst"]), data).build().eval()
        batches = list(data.test_batches(5))
        with torch.no_grad():
            sums = torch.stack([task.build().measured(model, batch)[1].double() for batch in batches]).sum(0)
            found = torch.cat([model(batch.inputs) for batch in batches]).sort(-1).values
        targets, middle = torch.cat([batch.targets for batch in batches]), found[..., len(quantiles) // 2]
        measures = task.build().metrics(sums)
        assert measures["mse"] == pytest.approx(float((targets - middle).square().mean()), rel=1e-4)
        assert measures["mae"] == pytest.approx(float((targets - middle).abs().mean()), rel=1e-4)
        if quantiles:
            inside = (found[..., 0] <= targets) & (targets <= found[..., -1])
            assert measures["coverage"] == pytest.approx(float(inside.float().mean()))


def test_a_run_forecasts_evaluates_looks_and_draws(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--data.points", "16", "--data.horizon", "4", "--data.limit", "none", "--model.layers", "1"]
    steps = ["--train.steps", "4", "--train.evaluate_every", "2", "--data.batch", "8"]
    where = ["--runs", str(tmp_path), "--name", "w", "--data.path", str(table), "--task.quantiles", "0.2,0.5,0.8"]
    assert main(["train", "etth1", *where, *sizes, *steps]) == 0
    capsys.readouterr()
    run = str(tmp_path / "w")
    own = tmp_path / "own.csv"
    own.write_text("count,wave,other\n" + "".join(f"{1000 + t},{t % 5},0\n" for t in range(20)))
    picture = tmp_path / "f.svg"
    assert main(["predict", run, str(own), "--json", "--out", str(picture)]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert list(answer["forecast"]) == ["wave", "count"]
    numbers = answer["forecast"]["count"]
    assert list(numbers) == ["0.2", "0.5", "0.8"]
    assert all(len(one) == 4 for one in numbers.values())
    assert all(900 < value < 1150 for value in numbers["0.5"])  # in the units of the file
    assert picture.read_text().count('class="band') == 2
    assert main(["evaluate", run, "--part", "test", "--json"]) == 0
    assert {"mse", "mae", "coverage"} <= json.loads(capsys.readouterr().out).keys()
    assert main(["look", run]) == 0
    assert "data:image/svg+xml;base64," in (tmp_path / "w" / "look.html").read_text()
    assert main(["doctor", run]) == 0
    capsys.readouterr()
    own.write_text("wave\n1\n")
    assert main(["predict", run, str(own)]) != 0
    assert "has no column 'count'" in capsys.readouterr().err
