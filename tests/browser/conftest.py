"""Real runs of every kind the page shows, a server of them, and a browser in front of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "serve"))
from browser_kit import Tab, launched
from browser_runs import experiments
from serve_kit import Served, serving  # pyright: ignore[reportMissingImports]

from regard.config import to_toml
from regard.doctor import Doctor
from regard.report import Watch
from regard.runs import Run, environment
from regard.train import train


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="session")
def runs(room: Path) -> Path:
    """A folder of runs that were really trained, one of them with a learning rate that no model survives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(room / "cache"))
        for name, wanted in experiments(room).items():
            run = Run.create(room / "runs", name, to_toml(wanted.checked()), environment())
            train(wanted, run, [Watch(), Doctor(out=sys.stdout)])
    return room / "runs"


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[Served]:
    with serving(runs) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def tab(chromium: Any, served: Served) -> Iterator[Tab]:
    """A tab that has been let in; when the test is over, nothing may have been complained about."""
    opened = Tab(chromium, f"http://127.0.0.1:{served.port}", accept_downloads=True)
    opened.page.goto(f"{opened.origin}/?token={served.token}")
    yield opened
    opened.close()
