"""Benchmarks: mistakes are found before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["training", "experts", "generation", "linear", "translation", "window"])
def test_too_few_rounds_are_refused_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    module = pytest.importorskip(f"bench.{name}")
    monkeypatch.setattr("sys.argv", [name, "--rounds", "5"])
    monkeypatch.setattr("bench.interleave.interleave", None)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert "5 rounds are too few for a 95% interval of the median; write --rounds 6 or more" in capsys.readouterr().err


def test_as_few_rounds_as_an_interval_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from bench.interleave import FEWEST_ROUNDS, median_interval

    assert median_interval(range(FEWEST_ROUNDS))[1:] == (0, FEWEST_ROUNDS - 1)
    with pytest.raises(ValueError, match="too few"):
        median_interval(range(FEWEST_ROUNDS - 1))
