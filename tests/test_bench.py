"""Benchmarks: mistakes are found before anything is measured."""

from __future__ import annotations

import pytest
from bench.interleave import FEWEST_ROUNDS, median_interval


@pytest.mark.parametrize("name", ["training", "experts", "generation", "linear", "translation", "window"])
def test_too_few_rounds_are_refused_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = pytest.importorskip(f"bench.{name}")
    monkeypatch.setattr("sys.argv", [name, "--rounds", "5"])
    monkeypatch.setattr("bench.interleave.interleave", None)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert "5 rounds are too few for a 95% interval of the median; write --rounds 6 or more" in capsys.readouterr().err


def test_as_few_rounds_as_an_interval_needs() -> None:
    assert median_interval(range(FEWEST_ROUNDS))[1:] == (0, FEWEST_ROUNDS - 1)
    with pytest.raises(ValueError, match="too few"):
        median_interval(range(FEWEST_ROUNDS - 1))
