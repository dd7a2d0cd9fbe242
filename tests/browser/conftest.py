"""Fixtures: trained runs of several kinds, a server for them, and a browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "serve"))
from browser_kit import Tab, launch_chromium
from browser_runs import experiments
from serve_kit import RunningServer, run_server  # pyright: ignore[reportMissingImports]

from regard.config import to_toml
from regard.doctor import Doctor
from regard.report import ModelMeasurements
from regard.runs import Run, environment
from regard.train import train


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="session")
def runs(folder: Path) -> Path:
    """Train the runs; one of them has a learning rate that is far too high."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for name, experiment in experiments(folder).items():
            run = Run.create(folder / "runs", name, to_toml(experiment.checked()), environment())
            train(experiment, run, [ModelMeasurements(), Doctor(out=sys.stdout)])
    return folder / "runs"


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[RunningServer]:
    with run_server(runs) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with launch_chromium() as browser:
        yield browser


@pytest.fixture
def tab(chromium: Any, served: RunningServer) -> Iterator[Tab]:
    """Open a tab with a valid token; closing it fails on console errors."""
    tab = Tab(chromium, f"http://127.0.0.1:{served.port}", accept_downloads=True)
    tab.page.goto(f"{tab.origin}/?token={served.token}")
    yield tab
    tab.close()
